"""From two exported graphs of one model, at two batches, to drafts of the nodes of an ``OpGraph``.

Blocks that stand for others are expanded here: their nodes are copies of the traced block's, with
their own operands, module paths and kept tensors. Nodes keep their exported names; ``naming`` gives
them the final ones.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal

import torch
from torch import fx

from autoplan.trace import batch_sizes
from autoplan.trace.drafts import Draft, Moved, operands_in
from autoplan.trace.graph import DTYPE_BYTES, Arg, Calls, Ref, SavedTensor, TensorMeta, TorchValue
from autoplan.trace.placeholders import Placeholder, own_path
from autoplan.trace.refusals import refused, where_of
from autoplan.trace.regions import Region, block_reads
from autoplan.trace.repeat_errors import CannotFoldError
from autoplan.trace.repeat_ops import BLOCK, MARK
from autoplan.trace.reruns import calls_around, moved_calls, number_calls
from autoplan.trace.saved import Kept, NodeRun, copy_name

Runs = Mapping[str, NodeRun]
_KINDS: dict[type, Literal["dtype", "device", "layout", "memory_format"]] = {
    torch.device: "device",
    torch.dtype: "dtype",
    torch.layout: "layout",
    torch.memory_format: "memory_format",
}


class Converter:
    """Converts one pair of graphs.

    Args:
        graphs: clean graphs at two batches.
        batches: these.
        runs: the fake run of each.
        placeholders: what each placeholder of the graphs stands for.
        regions: the traced blocks of the first graph.
    """

    def __init__(
        self,
        graphs: tuple[fx.Graph, fx.Graph],
        batches: batch_sizes.Batches,
        runs: tuple[Runs, Runs],
        placeholders: tuple[Mapping[str, Placeholder], Mapping[str, Placeholder]],
        regions: Mapping[str, Region],
    ):
        self.graphs = graphs
        self.batches = batches
        self.runs = runs
        self.placeholders = placeholders
        self.regions = regions
        self.converted: dict[str, Draft] = {}
        self.block_outputs: dict[Ref, Ref] = {}

    def drafts(self) -> list[Draft]:
        """The nodes in the order of the graph, placeholders first."""
        for node, other in batch_sizes.paired(*self.graphs, self.batches):
            if node.op == "placeholder":
                self._add(self._placeholder(node, other))
            elif node.target is BLOCK:
                for copy in self._block(node, other):
                    self._add(copy)
            elif node.name in self.runs[0] and node.target is not MARK:
                self._add(self._call(node, other))
        number_calls(self.converted.values())
        return list(self.converted.values())

    def results(self) -> tuple[Ref, ...]:
        """What the program returns."""
        last: Any = next(node for node in reversed(self.graphs[0].nodes) if node.op == "output")
        return tuple(map(self._ref, last.args[0]))

    def _add(self, node: Draft) -> None:
        self.converted[node.name] = node

    def _ref(self, node: fx.Node) -> Ref:
        ref = _ref_of(node)
        return self.block_outputs.get(ref, ref)

    def _placeholder(self, node: fx.Node, other: fx.Node) -> Draft:
        given = self.placeholders[0][node.name]
        if repr(given.values) != repr(self.placeholders[1][other.name].values):
            what = "the forward makes a tensor of plain numbers that differ at batch {} and {}"
            cure = "use the number itself, not a tensor of it, or give it as an input"
            raise refused(next(iter(node.users), node), what.format(*self.batches), cure)
        return Draft(
            name=node.name,
            kind=given.kind,
            target=given.target,
            args=given.values,
            outputs=_metas(node, self.runs[0][node.name]),
            alias_of=(None,),
        )

    def _call(self, node: fx.Node, other: fx.Node) -> Draft:
        run = self.runs[0][node.name]
        given = zip(node.args, other.args, strict=True)
        args = tuple(self._argument(a, b, node) for a, b in given)
        kwargs = tuple(
            (key, self._argument(value, other.kwargs[key], node))
            for key, value in node.kwargs.items()
        )
        operands = operands_in(args, kwargs)
        around = calls_around(node)
        return Draft(
            name=node.name,
            kind="call",
            target=str(node.target),
            args=args,
            kwargs=kwargs,
            outputs=_metas(node, run),
            alias_of=_aliased(operands, run),
            module=_innermost(around),
            around=around,
            flops=run.flops,
            backward_flops=run.backward_flops,
            saved=_saved(run, self.runs[1][other.name], self.batches, node),
            where=where_of(node),
            operands=operands,
        )

    def _argument(self, value: Any, other: Any, node: fx.Node) -> Arg:
        if isinstance(value, fx.Node):
            return self._ref(value)
        if isinstance(value, (list, tuple)):
            if len(value) != len(other):
                raise batch_sizes.differs(node, "the number of arguments varies")
            return tuple(self._argument(a, b, node) for a, b in zip(value, other, strict=True))
        if isinstance(value, int) and not isinstance(value, bool):
            return batch_sizes.batch_int(value, other, self.batches, node)
        if repr(value) != repr(other):
            raise batch_sizes.differs(
                node, f"the argument {value} becomes {other} at another batch"
            )
        return (
            value if isinstance(value, (bool, float, str, type(None))) else _constant(value, node)
        )

    def _block(self, stub: fx.Node, other: fx.Node) -> Iterator[Draft]:
        if stub.args[0] != other.args[0]:
            raise CannotFoldError("", "the traces fold differently")
        region = self.regions[str(stub.args[0])]
        inside = {node.name for node in region.nodes}
        mapped: dict[Ref, Ref] = {}
        for first, second in zip(region.reads, block_reads(stub), strict=True):
            if mapped.setdefault(self._ref(first), self._ref(second)) != self._ref(second):
                raise CannotFoldError("", "arguments of a block cannot be told apart")

        def moved(ref: Ref) -> Ref:
            if ref.node in inside:
                return Ref(copy_name(ref.node, stub), ref.index)
            return mapped[ref]

        first, around = _block_path(str(stub.args[0])), calls_around(stub)
        for node in region.nodes:
            if node.name in self.converted:
                yield self._copy(node, stub, other, moved, (first, around))
        for index, result in enumerate(region.results):
            self.block_outputs[Ref(stub.name, index)] = moved(self._ref(result))

    def _copy(
        self, node: fx.Node, stub: fx.Node, other: fx.Node, moved: Moved, block: tuple[str, Calls]
    ) -> Draft:
        name = copy_name(node.name, stub)
        first_run, run = self.runs[0][node.name], self.runs[0][name]
        origin = self.converted[node.name]
        first, outer = block
        here = _innermost(outer)
        below = origin.module == first or origin.module.startswith(f"{first}.")
        return Draft(
            name=name,
            kind=origin.kind,
            target=origin.target,
            args=origin.args,
            kwargs=origin.kwargs,
            outputs=origin.outputs if run.outputs is first_run.outputs else _metas(node, run),
            alias_of=_aliased(origin.operands, run),
            module=here + origin.module[len(first) :] if below else origin.module,
            around=moved_calls(origin.around, first, here, outer),
            flops=run.flops,
            backward_flops=run.backward_flops,
            saved=_saved(run, self.runs[1][copy_name(node.name, other)], self.batches, node),
            where=origin.where,
            operands=tuple(map(moved, origin.operands)),
            moved=moved,
        )


def _constant(value: Any, node: fx.Node) -> TorchValue:
    if type(value) not in _KINDS:
        raise refused(
            node,
            f"{node.target} has an argument of type {type(value).__name__}, which is not supported",
            "use another operator",
        )
    name = value.type if isinstance(value, torch.device) else _short(value)
    return TorchValue(_KINDS[type(value)], name)


@cache
def _short(value: Any) -> str:
    return str(value).removeprefix("torch.")


def _ref_of(node: fx.Node) -> Ref:
    """The tensor that an fx node stands for; items of a multi-output node are its outputs."""
    if node.target is operator.getitem:
        base: Any = node.args[0]
        index: Any = node.args[1]
        return Ref(base.name, index)
    return Ref(node.name)


def _innermost(around: Calls) -> str:
    """Path of the innermost module that ran a node, '' for the model itself."""
    return around[-1][0] if around else ""


def _block_path(key: str) -> str:
    return own_path(key.rpartition("#")[0])


def _metas(node: fx.Node, run: NodeRun) -> tuple[TensorMeta, ...]:
    for output in run.outputs:
        if _short(output.dtype) not in DTYPE_BYTES:
            raise refused(
                node,
                f"a tensor of dtype {_short(output.dtype)} is not supported",
                f"use one of {', '.join(DTYPE_BYTES)}",
            )
    return tuple(
        TensorMeta(
            shape=tuple(output.shape),
            dtype=_short(output.dtype),
            batch_dims=dims,
            requires_grad=output.requires_grad,
        )
        for output, dims in zip(run.outputs, node.meta["batch_dims"], strict=True)
    )


def _aliased(operands: tuple[Ref, ...], run: NodeRun) -> tuple[Ref | None, ...]:
    return tuple(None if position is None else operands[position] for position in run.alias_of)


def _saved(
    run: NodeRun, other: NodeRun, batches: batch_sizes.Batches, node: fx.Node
) -> tuple[SavedTensor, ...]:
    if len(run.kept) != len(other.kept):
        raise batch_sizes.differs(node, "autograd keeps other tensors at another batch")
    return tuple(
        _saved_tensor(one, two, batches, node)
        for one, two in zip(run.kept, other.kept, strict=True)
    )


def _saved_tensor(
    kept: Kept, other: Kept, batches: batch_sizes.Batches, node: fx.Node
) -> SavedTensor:
    return SavedTensor(
        source=kept.source,
        operand=kept.operand,
        nbytes=kept.nbytes,
        batch_power=batch_sizes.power(kept.nbytes, other.nbytes, batches, node),
    )
