"""What each node costs and keeps: one fake run of the graph with autograd on.

Under ``saved_tensors_hooks`` every tensor that autograd keeps is seen with the node that keeps it.
Memory is held by storages, not tensors, so kept tensors are traced to the node that allocated
their storage: views cost nothing but need their base. Storages of parameters, buffers, constants
and inputs live anyway and are not listed. The same run yields, for each output, whether it needs a
gradient and which operand it is a view of.

A block that stands for an earlier one is not run again when its inputs have the same metadata and
aliasing: its nodes' results are those of the earlier block, with what they keep of their inputs
traced anew.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import FlopCounterMode

from autoplan.trace.flops import (
    attention_on_cpu_flops,
    backward_flops,
    grouped_linear_flops,
)
from autoplan.trace.graph import Ref
from autoplan.trace.kernels import Call
from autoplan.trace.recurrent import RECURRENT, recurrent_flops
from autoplan.trace.regions import Region, block_reads
from autoplan.trace.repeat_ops import BLOCK, MARK
from autoplan.trace.torch_private import storage_id, tree_leaves

Values = dict[fx.Node, Any]
_FORMULAS = {
    torch.ops.autoplan.grouped_linear: grouped_linear_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention_on_cpu_flops,
}


@dataclass(frozen=True, slots=True)
class Kept:
    """One storage kept by a node; ``source`` and ``operand`` as in ``SavedTensor``."""

    source: Ref | None
    operand: int | None
    nbytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRun:
    """One node of the run: outputs, positions of the operands they alias, what is kept, flops."""

    outputs: tuple[torch.Tensor, ...]
    alias_of: tuple[int | None, ...] = ()
    kept: tuple[Kept, ...] = ()
    flops: int = 0
    backward_flops: int = 0

    def keeping(self, kept: tuple[Kept, ...]) -> NodeRun:
        """The same run, with other storages kept."""
        return NodeRun(
            outputs=self.outputs,
            alias_of=self.alias_of,
            kept=kept,
            flops=self.flops,
            backward_flops=self.backward_flops,
        )


@dataclass(frozen=True, slots=True)
class _Packed:
    """A storage that autograd packed during a node, whoever owns it."""

    storage: int
    operand: int | None
    nbytes: int


def run_graph(graph: fx.Graph, regions: Mapping[str, Region], call: Call) -> dict[str, NodeRun]:
    """Runs an exported graph on fake tensors.

    Args:
        graph: a clean graph.
        regions: its traced blocks (``regions.find_regions``).
        call: how operators run, as on a GPU or as on a CPU.

    Returns:
        The runs by fx node name; those of a block that stands for another by ``copy_name``.
    """
    return _Run(regions, call).run(graph)


def copy_name(name: str, stub: fx.Node) -> str:
    """Name of the copy of a region's node in a block that stands for the region."""
    return f"{name}@{stub.name}"


def operands_of(node: fx.Node) -> list[fx.Node]:
    """The nodes it reads in the order of args then kwargs, with repetition."""
    leaves = tree_leaves((list(node.args), list(node.kwargs.values())))
    return [leaf for leaf in leaves if isinstance(leaf, fx.Node)]


class _Run:
    def __init__(self, regions: Mapping[str, Region], call: Call):
        self.regions = regions
        self.call = call
        self.counter = FlopCounterMode(display=False, custom_mapping=_FORMULAS)
        self.values: Values = {}
        self.owner: dict[int, Ref | None] = {}
        self.packed: dict[str, tuple[_Packed, ...]] = {}
        self.packing: list[torch.Tensor] = []
        self.alive: list[torch.UntypedStorage] = []
        self.runs: dict[str, NodeRun] = {}

    def run(self, graph: fx.Graph) -> dict[str, NodeRun]:
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        for node in placeholders:
            self._place(node)
        hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
        mode = placeholders[0].meta["val"].fake_mode
        with mode, torch.enable_grad(), hooks, self.counter:
            for node in graph.nodes:
                if node.target is BLOCK:
                    self._run_block(node)
                elif node.op == "call_function" and node.target is not MARK:
                    self._run_node(node, node.name, self.values)
        return self.runs

    def _place(self, node: fx.Node) -> None:
        given = node.meta["val"]
        value = given if given.is_leaf else given.detach().requires_grad_(given.requires_grad)
        self.values[node] = value
        self.alive.append(value.untyped_storage())
        self.owner[storage_id(value)] = None
        self.runs[node.name] = NodeRun(outputs=(value,), alias_of=(None,))

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self.alive.append(tensor.untyped_storage())
        self.packing.append(tensor)
        return tensor

    def _run_node(self, node: fx.Node, name: str, values: Values) -> None:
        if node.target is operator.getitem:
            base: Any = node.args[0]
            values[node] = values[base][node.args[1]]
            return
        self.packing = []
        args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
        before = self.counter.get_total_flops()
        result = self.call(node.target, args, kwargs)
        flops = self.counter.get_total_flops() - before
        values[node] = result
        outputs = tuple(leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))
        operands = [values[source] for source in operands_of(node)]
        flops = recurrent_flops(operands) if node.target in RECURRENT else flops
        self.packed[name] = tuple(_distinct(self.packing, operands))
        own = {storage_id(x): Ref(name, i) for i, x in reversed(list(enumerate(outputs)))}
        self.alive.extend(output.untyped_storage() for output in outputs)
        kept = tuple(self._kept(self.packed[name], own))
        for storage, ref in own.items():
            self.owner.setdefault(storage, ref)
        self.runs[name] = NodeRun(
            outputs=outputs,
            alias_of=tuple(_alias(output, operands) for output in outputs),
            kept=kept,
            flops=flops,
            backward_flops=backward_flops(node.target, flops, operands),
        )

    def _kept(self, packed: Sequence[_Packed], own: Mapping[int, Ref]) -> Iterator[Kept]:
        for item in packed:
            if item.storage not in self.owner:
                yield Kept(own.get(item.storage), None, item.nbytes)
            elif self.owner[item.storage] is not None:
                yield Kept(self.owner[item.storage], item.operand, item.nbytes)

    def _run_block(self, stub: fx.Node) -> None:
        region = self.regions[stub.args[0]]  # pyright: ignore[reportArgumentType]
        given = [self.values[node] for node in block_reads(stub)]
        local: Values = dict(zip(region.reads, given, strict=True))
        if self._can_copy(region, given):
            self._copy_block(stub, region, local)
        else:
            for node in region.nodes:
                self._run_node(node, copy_name(node.name, stub), local)
        self.values[stub] = [local[node] for node in region.results]

    def _can_copy(self, region: Region, given: Sequence[torch.Tensor]) -> bool:
        first = [self.values[node] for node in region.reads]
        if [_key(x) for x in first] != [_key(x) for x in given]:
            return False
        if _alias_pattern(first) != _alias_pattern(given):
            return False
        inside = {node.name for node in region.nodes}
        results = [self.values[node] for node in region.results if node not in region.reads]
        owners = [self.owner[storage_id(result)] for result in results]
        return len(set(owners)) == len(owners) and all(
            owner is not None and owner.node in inside and _fills_storage(result)
            for owner, result in zip(owners, results, strict=True)
        )

    def _copy_block(self, stub: fx.Node, region: Region, local: Values) -> None:
        inside = {node.name for node in region.nodes}
        entered = {storage_id(self.values[node]): local[node] for node in region.reads}
        for name in (node.name for node in region.nodes if node.name in self.runs):
            run = self.runs[name]
            if self.packed[name]:
                kept = tuple(self._copied(self.packed[name], stub, inside, entered))
                run = run.keeping(kept)
            self.runs[copy_name(name, stub)] = run
        for node in region.results:
            if node in local:
                continue
            result = self.values[node]
            owner = self.owner[storage_id(result)]
            fresh = torch.empty_strided(result.size(), result.stride(), dtype=result.dtype)
            local[node] = fresh.requires_grad_(result.requires_grad)
            self.alive.append(fresh.untyped_storage())
            if owner is not None:
                self.owner[storage_id(fresh)] = Ref(copy_name(owner.node, stub), owner.index)

    def _copied(self, packed, stub, inside, entered) -> Iterator[Kept]:
        for item in packed:
            owner = self.owner.get(item.storage)
            if item.storage not in self.owner:
                yield Kept(None, None, item.nbytes)
            elif owner is not None and owner.node in inside:
                yield Kept(Ref(copy_name(owner.node, stub), owner.index), item.operand, item.nbytes)
            elif self.owner[storage_id(entered[item.storage])] is not None:
                tensor = entered[item.storage]
                nbytes = tensor.untyped_storage().nbytes()
                yield Kept(self.owner[storage_id(tensor)], item.operand, nbytes)


def _distinct(
    tensors: Sequence[torch.Tensor], operands: Sequence[torch.Tensor]
) -> Iterator[_Packed]:
    positions: dict[int, int] = {}
    for position, operand in enumerate(operands):
        positions.setdefault(storage_id(operand), position)
    seen: set[int] = set()
    for tensor in tensors:
        storage = storage_id(tensor)
        if storage not in seen:
            seen.add(storage)
            yield _Packed(storage, positions.get(storage), tensor.untyped_storage().nbytes())


def _alias(output: torch.Tensor, operands: Sequence[torch.Tensor]) -> int | None:
    for position, operand in enumerate(operands):
        if storage_id(operand) == storage_id(output):
            return position
    return None


def _key(tensor: torch.Tensor) -> tuple:
    return (
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.requires_grad,
        tensor.storage_offset(),
    )


def _alias_pattern(tensors: Sequence[torch.Tensor]) -> list[int]:
    numbers: dict[int, int] = {}
    return [numbers.setdefault(storage_id(tensor), len(numbers)) for tensor in tensors]


def _fills_storage(tensor: torch.Tensor) -> bool:
    span = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return (
        tensor.storage_offset() == 0
        and span * tensor.element_size() == tensor.untyped_storage().nbytes()
    )
