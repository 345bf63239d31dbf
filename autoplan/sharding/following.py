"""Placements for another graph of a model, after those that were chosen for the one with its loss.

Calls that both graphs have run as chosen, wherever what they read can follow. Everything else, and
what the other graph has at sizes that do not split so, is whole on every rank of ``tp``: right
whatever was chosen. Weights stay where they are stored.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from autoplan.sharding.assignment import Assignment
from autoplan.sharding.mesh import MeshAxis
from autoplan.sharding.placement import Placement, Replicate, divides, grad_of
from autoplan.sharding.redistribute import is_possible
from autoplan.sharding.rules import GraphRules
from autoplan.sharding.strategies import Port, Strategy
from autoplan.trace.graph import Block, OpGraph, OpNode, Ref
from autoplan.trace.stack import Stack


def follow(graph: OpGraph, chosen: Assignment, blocks: Sequence[Block], tp: int) -> Assignment:
    """Choices for every node of ``graph``.

    Args:
        chosen: for the graph that has the blocks ``blocks``, under the same names of nodes.
        tp: ranks.
    """
    walk = _Walk(graph, chosen, blocks, tp)
    for node in graph.of_kind("call"):
        walk.call(node)
    return Assignment(strategies=walk.strategies, storage=chosen.storage, entries=walk.entries)


def follow_stages(stack: Stack, chosen: Stack, starts: Sequence[int]) -> tuple[int, ...]:
    """Numbers of the items of ``stack`` with which stages begin.

    Each item is in the stage of what it has in common with the other graph, or of the item before.

    Args:
        chosen: the items of the other graph.
        starts: of its stages. A stage of which this graph has nothing begins where the next does.
    """
    stages: list[int] = []
    for item in stack.items:
        places = (chosen.position[name] for name in item.calls if name in chosen.position)
        own = (bisect_right(starts, place) - 1 for place in places)
        stages.append(max((*stages[-1:], *own), default=0))
    return tuple(sum(stage < index for stage in stages) for index in range(len(starts)))


class _Walk:
    """Forward in topological order."""

    def __init__(
        self, graph: OpGraph, chosen: Assignment, blocks: Sequence[Block], tp: int
    ) -> None:
        self._graph = graph
        self._chosen = chosen
        self._rules = GraphRules(graph)
        self._axis = MeshAxis("tp", tp, shares_samples=True)
        self._blocks = {block.path: block for block in blocks}
        self.strategies: dict[str, Strategy] = {}
        self.entries: dict[str, tuple[Placement, ...]] = {}

    def call(self, node: OpNode) -> None:
        """Takes the strategy of the same name, or the whole operator."""
        block = self._graph.block_of.get(node.name)
        entries: Mapping[Ref, Placement] = {}
        if block is not None:
            if block.path not in self.entries:
                self.entries[block.path] = tuple(self._entry(block, ref) for ref in block.inputs)
            entries = dict(zip(block.inputs, self.entries[block.path], strict=True))
        sources = [entries[ref] if ref in entries else self._produced(ref) for ref in node.operands]
        offered = self._rules.strategies(node, self._axis)
        known = self._chosen.strategies.get(node.name)
        self.strategies[node.name] = next(
            (
                strategy
                for strategy in offered
                if known is not None
                and strategy.label == known.label
                and all(map(is_possible, sources, strategy.inputs))
                and self._divides(node, strategy)
            ),
            offered[0],
        )

    def _entry(self, block: Block, ref: Ref) -> Placement:
        """The placement in which a tensor enters a block."""
        same = self._blocks.get(block.path)
        if same is None or ref not in same.inputs:
            return Replicate()
        placement = self._chosen.entry(same, ref)
        port = Port(placement, grad_of(placement))
        fits = divides(placement, self._graph.meta(ref).shape, self._axis.size)
        return placement if fits and is_possible(self._produced(ref), port) else Replicate()

    def _produced(self, ref: Ref) -> Placement:
        if ref.node in self.strategies:
            return self.strategies[ref.node].outputs[ref.index]
        return self._chosen.storage.get(ref.node, Replicate())

    def _divides(self, node: OpNode, strategy: Strategy) -> bool:
        """Whether the ranks share what they read and make evenly."""
        read = zip(node.operands, (port.placement for port in strategy.inputs), strict=True)
        made = (
            (Ref(node.name, index), placement) for index, placement in enumerate(strategy.outputs)
        )
        return all(
            divides(placement, self._graph.meta(ref).shape, self._axis.size)
            for ref, placement in (*read, *made)
        )
