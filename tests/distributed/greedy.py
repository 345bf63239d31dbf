"""A plain way to shard any graph over ``tp``, close to what people write by hand.

Operators choose in order of execution, each what moves the fewest bytes now and would to make its
output whole again; where splitting by heads, vocabulary rows or classes is offered, it is taken.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.plan import RegionPlan
from autoplan.sharding.assignment import regions_of
from autoplan.sharding.mesh import MeshAxis
from autoplan.sharding.placement import Partial, Placement, Replicate, Shard
from autoplan.sharding.redistribute import conversion, is_possible, messages
from autoplan.sharding.rules import GraphRules
from autoplan.sharding.strategies import Port, Strategy
from autoplan.trace.graph import OpGraph, OpNode, Ref

PREFERRED = ("h", "v", "c")
BYTES_PER_FLOP = 1.0
SHARD_COST, PARTIAL_COST = 2.0, 2.3
MESSAGE_COST = {"all_reduce": 2.0}


def greedy_regions(
    graph: OpGraph, tp: int, recomputed: frozenset[str] = frozenset()
) -> tuple[RegionPlan, ...]:
    """Regions of a plan for ``graph``."""
    walk = _Walk(graph, tp)
    for node in graph.of_kind("call"):
        walk.visit(node)
    return regions_of(
        graph,
        {name: strategy.label for name, strategy in walk.strategies.items()},
        walk.stored,
        {kind: tuple(walk.entries[kind].values()) for kind in graph.kinds},
        recomputed,
    )


class _Walk:
    def __init__(self, graph: OpGraph, tp: int) -> None:
        self.graph = graph
        self.axis = MeshAxis("tp", tp)
        self.strategies: dict[str, Strategy] = {}
        self.stored: dict[str, Placement] = {
            node.name: Replicate()
            for node in graph.of_kind("parameter")
            if not graph.readers.get(Ref(node.name))
        }
        self.entries: dict[str, dict[Ref, Placement]] = {}

    def visit(self, node: OpNode) -> None:
        block = self.graph.block_of.get(node.name)
        entries: dict[Ref, Placement] = {}
        if block is not None:
            first = self.graph.kinds[block.kind][0]
            if block is not first:
                model = first.nodes[block.nodes.index(node.name)]
                self.strategies[node.name] = self.strategies[model]
                self._store_like(node, self.graph.by_name[model])
                return
            if block.kind not in self.entries:
                self.entries[block.kind] = {ref: self._entry(ref) for ref in block.inputs}
            entries = self.entries[block.kind]
        sources = [entries.get(ref) or self._produced(ref) for ref in node.operands]
        strategy = self._choose(node, sources)
        self.strategies[node.name] = strategy
        for ref, port in zip(node.operands, strategy.inputs, strict=True):
            if self._is_open(ref):
                self.stored[ref.node] = _storable(port)

    def _choose(self, node: OpNode, sources: Sequence[Placement | None]) -> Strategy:
        offered = [
            strategy
            for strategy in GraphRules(self.graph).strategies(node, self.axis)
            if all(
                source is None or is_possible(source, port)
                for source, port in zip(sources, strategy.inputs, strict=True)
            )
        ]
        if self.axis.size == 1:
            return offered[0]
        preferred = [strategy for strategy in offered if strategy.label in PREFERRED]
        return min(preferred or offered, key=lambda s: self._cost(node, s, sources))

    def _cost(self, node: OpNode, strategy: Strategy, sources: Sequence[Placement | None]) -> float:
        cost = 0.0 if strategy.splits_work else BYTES_PER_FLOP * node.flops
        for ref, source, port in zip(node.operands, sources, strategy.inputs, strict=True):
            meta = self.graph.meta(ref)
            edge = conversion(source or _storable(port), port, differentiable=meta.requires_grad)
            if edge is not None:
                for kind, nbytes in sum(messages(edge, meta.nbytes, self.axis.size), ()):
                    cost += MESSAGE_COST.get(kind, 1.0) * nbytes
            if source is None and _storable(port) == Replicate():
                cost += meta.nbytes
        for meta, placement in zip(node.outputs, strategy.outputs, strict=True):
            if isinstance(placement, Shard):
                cost += SHARD_COST * meta.nbytes
            if isinstance(placement, Partial):
                cost += PARTIAL_COST * meta.nbytes
        return cost

    def _entry(self, ref: Ref) -> Placement:
        produced = self._produced(ref)
        return produced if isinstance(produced, Shard) else Replicate()

    def _produced(self, ref: Ref) -> Placement | None:
        """The placement of a tensor; None for a parameter whose storage is still open."""
        if ref.node in self.strategies:
            return self.strategies[ref.node].outputs[ref.index]
        return None if self._is_open(ref) else self.stored.get(ref.node, Replicate())

    def _is_open(self, ref: Ref) -> bool:
        return self.graph.by_name[ref.node].kind == "parameter" and ref.node not in self.stored

    def _store_like(self, node: OpNode, model: OpNode) -> None:
        for ref, other in zip(node.operands, model.operands, strict=True):
            if self._is_open(ref):
                self.stored[ref.node] = self.stored[other.node]


def _storable(port: Port) -> Placement:
    placement = port.placement
    return placement if isinstance(placement, Shard) and placement.parts == 1 else Replicate()
