"""What each node costs and keeps: one fake run of the graph with autograd on.

Under ``saved_tensors_hooks`` every tensor that autograd keeps is seen with the node that keeps it.
Memory is held by storages, not tensors, so kept tensors are traced to the node that allocated
their storage: views cost nothing but need their base. Storages of parameters, buffers, constants
and inputs live anyway and are not listed. The same run yields, for each output, whether it needs a
gradient and which operand it is a view of.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from autoplan.trace.flops import backward_flops
from autoplan.trace.graph import Ref
from autoplan.trace.kernels import Call, gpu_call


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """One storage kept by a node; ``source`` and ``operand`` as in ``SavedTensor``."""

    source: Ref | None
    operand: int | None
    nbytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRun:
    """One node of the run: its output tensors, what they alias, what is kept, its operations."""

    outputs: tuple[torch.Tensor, ...]
    alias_of: tuple[Ref | None, ...] = ()
    kept: tuple[Kept, ...] = ()
    flops: int = 0
    backward_flops: int = 0


def run_graph(graph: fx.Graph, call: Call = gpu_call) -> dict[str, NodeRun]:
    """Runs an exported graph on fake tensors; the result is keyed by fx node name."""
    return _Run(call).run(graph)


def ref_of(node: fx.Node) -> Ref:
    """The tensor that an fx node stands for; items of a multi-output node are its outputs."""
    if node.target is operator.getitem:
        base, index = node.args
        return Ref(base.name, index)  # pyright: ignore
    return Ref(node.name)


def operands_of(node: fx.Node) -> list[fx.Node]:
    """The nodes it reads in the order of args then kwargs, with repetition."""
    leaves = tree_leaves((list(node.args), [node.kwargs[key] for key in node.kwargs]))
    return [leaf for leaf in leaves if isinstance(leaf, fx.Node)]


class _Run:
    def __init__(self, call: Call):
        self.call = call
        self.values: dict[fx.Node, Any] = {}
        self.owner: dict[int, Ref | None] = {}
        self.packed: list[torch.Tensor] = []
        self.alive: list[torch.UntypedStorage] = []
        self.runs: dict[str, NodeRun] = {}

    def run(self, graph: fx.Graph) -> dict[str, NodeRun]:
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        mode = placeholders[0].meta["val"].fake_mode
        for node in placeholders:
            self._place(node)
        counter = FlopCounterMode(display=False)
        hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
        with mode, torch.enable_grad(), hooks, counter:
            for node in graph.nodes:
                if node.target is operator.getitem:
                    self.values[node] = self.values[node.args[0]][node.args[1]]
                elif node.op == "call_function":
                    self._run_node(node, counter)
        return self.runs

    def _place(self, node: fx.Node) -> None:
        value = node.meta["val"].detach().requires_grad_(node.meta["val"].requires_grad)
        self.values[node] = value
        self.alive.append(value.untyped_storage())
        self.owner[storage_id(value)] = None
        self.runs[node.name] = NodeRun(outputs=(value,), alias_of=(None,))

    def _run_node(self, node: fx.Node, counter: FlopCounterMode) -> None:
        self.packed = []
        args, kwargs = fx.map_arg((node.args, node.kwargs), self.values.__getitem__)
        before = counter.get_total_flops()
        result = self.call(node.target, args, kwargs)
        flops = counter.get_total_flops() - before
        self.values[node] = result
        outputs = tuple(leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))
        sources = operands_of(node)
        operands = [self.values[source] for source in sources]
        refs = [ref_of(source) for source in sources]
        alias_of = tuple(_alias(output, operands, refs) for output in outputs)
        own: dict[int, Ref] = {}
        for index, output in enumerate(outputs):
            self.alive.append(output.untyped_storage())
            own.setdefault(storage_id(output), Ref(node.name, index))
        kept = tuple(self._kept(own, operands))
        for storage, ref in own.items():
            self.owner.setdefault(storage, ref)
        self.runs[node.name] = NodeRun(
            outputs=outputs,
            alias_of=alias_of,
            kept=kept,
            flops=flops,
            backward_flops=backward_flops(node.target, flops, operands),
        )

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self.alive.append(tensor.untyped_storage())
        self.packed.append(tensor)
        return tensor

    def _kept(self, own: dict[int, Ref], operands: Sequence[torch.Tensor]) -> Iterator[Kept]:
        positions: dict[int, int] = {}
        for position, operand in enumerate(operands):
            positions.setdefault(storage_id(operand), position)
        seen: set[int] = set()
        for tensor in self.packed:
            storage = storage_id(tensor)
            if storage in seen:
                continue
            seen.add(storage)
            nbytes = tensor.untyped_storage().nbytes()
            if storage not in self.owner:
                yield Kept(source=own.get(storage), operand=None, nbytes=nbytes)
            elif self.owner[storage] is not None:
                yield Kept(
                    source=self.owner[storage], operand=positions.get(storage), nbytes=nbytes
                )


def storage_id(tensor: torch.Tensor) -> int:
    """Identity of the tensor's memory, valid while some tensor holds it."""
    return tensor.untyped_storage()._cdata


def _alias(
    output: torch.Tensor, operands: Sequence[torch.Tensor], refs: Sequence[Ref]
) -> Ref | None:
    for operand, ref in zip(operands, refs, strict=True):
        if storage_id(operand) == storage_id(output):
            return ref
    return None
