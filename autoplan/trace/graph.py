"""The operator graph: one training forward pass, written for the global batch on one device.

The graph is global: shapes are those of the whole batch on a single device, and its one output is
the scalar loss. Sharding, microbatches and data parallelism are later readings of it. Sizes that
follow the batch are marked (``TensorMeta.batch_dims``, ``BatchInt``), so that ``at_batch`` can
write the same graph for another batch without tracing again. The module is free of torch: dtypes,
devices and layouts are text.

A ``Block`` is one instance of a repeated part of the model (a transformer layer). Blocks of one
``kind`` are the same computation on different parameters: their nodes, inputs, parameters and
outputs correspond index by index.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

DTYPE_BYTES = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1,
    "float8_e5m2": 1, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
    "complex128": 16, "complex64": 8, "complex32": 4,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ref:
    """Output ``index`` of the node called ``node``: a tensor."""

    node: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class BatchInt:
    """An integer argument that follows the global batch.

    It is ``coefficient`` times, for each of ``offsets``, the batch plus that: ``3 n`` with (0,),
    and with (0, -1) the ``n (n - 1)`` pairs of different samples.
    """

    coefficient: int
    offsets: tuple[int, ...] = (0,)

    def at(self, batch: int) -> int:
        """Its value at a batch."""
        return self.coefficient * math.prod(batch + offset for offset in self.offsets)


@dataclass(frozen=True, slots=True)
class TorchValue:
    """A torch constant as an argument: dtype, device, layout or memory format, by its name.

    ``TorchValue("dtype", "float32")``; a device is always the device the program runs on.
    """

    kind: Literal["dtype", "device", "layout", "memory_format"]
    name: str


Arg = Ref | BatchInt | TorchValue | bool | int | float | str | None | tuple["Arg", ...]
Calls = tuple[tuple[str, int], ...]
"""Calls of modules, each by the module's path and how often it had been called before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorMeta:
    """A tensor without its values; ``batch_dims`` are the dims that follow the batch."""

    shape: tuple[int, ...]
    dtype: str
    batch_dims: tuple[int, ...] = ()
    requires_grad: bool = False

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedTensor:
    """A storage that autograd keeps from a node's forward until its backward.

    Storages of parameters, buffers and inputs are not listed: they live anyway.

    Attributes:
        source: the tensor whose storage is kept, named by the node that allocated it (views are
            followed to their base), or None when the storage is internal to the node
            (log-sum-exp of attention, mean and rstd of a norm, a dropout mask).
        operand: the position of the kept tensor among the node's tensor operands, None otherwise.
        nbytes: bytes of the storage at the graph's batch.
        batch_power: the power of the batch to which ``nbytes`` is proportional.
    """

    source: Ref | None
    operand: int | None
    nbytes: int
    batch_power: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class OpNode:
    """One value or operation.

    Attributes:
        name: unique; calls read ``<module path>/<op>`` with ``#k`` appended to the k-th repetition.
        kind: ``input``, ``parameter``, ``buffer``, ``constant`` or ``call``.
        target: ``aten.linear.default`` of a call; the original (first) qualified name of a
            parameter or buffer; the name of an input.
        args, kwargs: of a call, with tensors as ``Ref``; of a constant, its nested values.
        outputs: the tensors it produces, in order.
        alias_of: for each output, the operand ``Ref`` whose storage it shares, or None.
        module: path of the module that ran it.
        reruns: the calls of modules around it that were not the first of their module.
        flops: floating-point operations of the forward pass at the graph's batch.
        backward_flops: floating-point operations of its backward.
        saved: storages kept for its backward. A storage that several nodes keep is listed by each.
        where: user source line, ``file:line``, when known.
        operands: the tensors it reads, in the order of args then kwargs, nested lists flattened; a
            tensor read twice appears twice. Follows from ``args`` and ``kwargs``.
    """

    name: str
    kind: Literal["input", "parameter", "buffer", "constant", "call"]
    target: str
    args: tuple[Arg, ...] = ()
    kwargs: tuple[tuple[str, Arg], ...] = ()
    outputs: tuple[TensorMeta, ...]
    alias_of: tuple[Ref | None, ...] = ()
    module: str = ""
    reruns: Calls = ()
    flops: int = 0
    backward_flops: int = 0
    saved: tuple[SavedTensor, ...] = ()
    where: str = ""
    operands: tuple[Ref, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        read = tuple(refs_of((*self.args, *(value for _, value in self.kwargs))))
        object.__setattr__(self, "operands", read)

    def argument(self, position: int, name: str, default: Arg = None) -> Arg:
        """The argument of a call at a position or passed by name."""
        if position < len(self.args):
            return self.args[position]
        return dict(self.kwargs).get(name, default)


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One instance of a repeated part of the model.

    Attributes:
        path: module path of this instance, ``model.layers.3``; of a module that is called several
            times, ``encoder.layer@2`` is the third call.
        kind: path of the first instance of the same computation, ``model.layers.0``.
        nodes: names of its call nodes, in order.
        inputs: activations read from outside, in the order of first use.
        parameters: names of the parameter, buffer and constant nodes read, likewise.
        outputs: values that are read outside.
    """

    path: str
    kind: str
    nodes: tuple[str, ...]
    inputs: tuple[Ref, ...]
    parameters: tuple[str, ...]
    outputs: tuple[Ref, ...]


@dataclass(frozen=True, kw_only=True)
class OpGraph:
    """The whole model and its loss, or what the model returns without one.

    Attributes:
        nodes: in topological order; inputs, parameters, buffers and constants before calls.
        blocks: in order of execution; blocks never overlap.
        output: the scalar loss.
        batch: the global batch at which shapes, flops and bytes are written.
        tied: groups of parameter names that are one tensor; the first name is the node's.
        fingerprint: hash of names, shapes, dtypes and structure; independent of the batch.
        unread_draws: dropouts of the forward that the loss does not need, each by the name of the
            next one among the nodes (``trace.unread``).
        outputs: of a model without its loss, all that it returns; ``output`` is then the first.
    """

    nodes: tuple[OpNode, ...]
    blocks: tuple[Block, ...]
    output: Ref
    batch: int
    tied: tuple[tuple[str, ...], ...] = ()
    fingerprint: str = ""
    unread_draws: tuple[str, ...] = ()
    outputs: tuple[Ref, ...] = ()

    @property
    def results(self) -> tuple[Ref, ...]:
        """All that the graph returns."""
        return self.outputs or (self.output,)

    @cached_property
    def by_name(self) -> dict[str, OpNode]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def readers(self) -> dict[Ref, tuple[str, ...]]:
        """Names of the nodes that read each tensor, in order, without repetition."""
        found: dict[Ref, list[str]] = {}
        for node in self.nodes:
            for ref in dict.fromkeys(node.operands):
                found.setdefault(ref, []).append(node.name)
        return {ref: tuple(names) for ref, names in found.items()}

    @cached_property
    def block_of(self) -> dict[str, Block]:
        """The block of every call node that is in one."""
        return {name: block for block in self.blocks for name in block.nodes}

    @cached_property
    def kinds(self) -> dict[str, tuple[Block, ...]]:
        """Blocks by kind, in order of execution."""
        found: dict[str, list[Block]] = {}
        for block in self.blocks:
            found.setdefault(block.kind, []).append(block)
        return {kind: tuple(blocks) for kind, blocks in found.items()}

    @cached_property
    def representative(self) -> dict[str, str]:
        """For every node that belongs to blocks, its counterpart in the first block of the kind."""
        found: dict[str, str] = {}
        for block in self.blocks:
            first = self.kinds[block.kind][0]
            found.update(zip(block.nodes, first.nodes, strict=True))
            found.update(zip(block.parameters, first.parameters, strict=True))
        return found

    def meta(self, ref: Ref) -> TensorMeta:
        return self.by_name[ref.node].outputs[ref.index]

    def of_kind(self, kind: str) -> Iterator[OpNode]:
        return (node for node in self.nodes if node.kind == kind)

    def at_batch(self, batch: int) -> OpGraph:
        """The same graph written for another global batch."""
        if batch == self.batch:
            return self
        nodes = tuple(
            _node_at(node, self._batch_power(node), self.batch, batch) for node in self.nodes
        )
        return replace(self, nodes=nodes, batch=batch)

    def _batch_power(self, node: OpNode) -> int:
        """The power of the batch to which the work of a node is proportional.

        A matrix of samples by samples has both in its dims.
        """
        metas = (*node.outputs, *map(self.meta, node.operands))
        return max((len(meta.batch_dims) for meta in metas), default=0)


def refs_of(value: Arg) -> Iterator[Ref]:
    """The tensors in an argument, in order."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from refs_of(item)


def _node_at(node: OpNode, power: int, old: int, new: int) -> OpNode:
    if not power:
        return node
    outputs = tuple(_meta_at(meta, old, new) for meta in node.outputs)
    saved = tuple(
        replace(kept, nbytes=kept.nbytes * new**kept.batch_power // old**kept.batch_power)
        if kept.batch_power
        else kept
        for kept in node.saved
    )
    return replace(
        node,
        outputs=outputs,
        flops=node.flops * new**power // old**power,
        backward_flops=node.backward_flops * new**power // old**power,
        saved=saved,
    )


def _meta_at(meta: TensorMeta, old: int, new: int) -> TensorMeta:
    shape = tuple(
        size * new // old if dim in meta.batch_dims else size for dim, size in enumerate(meta.shape)
    )
    return replace(meta, shape=shape)
