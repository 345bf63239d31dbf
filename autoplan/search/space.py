"""All choices of the folded graph on a ``tp`` axis of one size.

Every decision, whatever it is about, is written as a list of strategies: those of a call come from
its rule; a parameter chooses the placement of its storage; a door chooses the placement in which an
activation enters the blocks of a kind. Inputs, buffers and constants are the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from autoplan.search.folded_graph import ROOT, Door, FoldedGraph
from autoplan.search.overrides import NONE_GIVEN, Overrides
from autoplan.sharding.placement import Placement, Replicate, Shard, divides, grad_of
from autoplan.sharding.strategies import Port, Strategy
from autoplan.trace.graph import OpNode, TensorMeta

StrategiesOf = Callable[[OpNode, int], tuple[Strategy, ...]]


@dataclass(frozen=True, kw_only=True)
class Space:
    """Decisions and their strategies; ``names`` are folded nodes and doors."""

    folded: FoldedGraph
    tp: int
    names: tuple[str, ...]
    strategies: tuple[tuple[Strategy, ...], ...]

    @cached_property
    def number(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    @cached_property
    def regions(self) -> tuple[str, ...]:
        """Block kind of every decision; ``ROOT`` outside blocks, and for doors."""
        return tuple(self.folded.region.get(name, ROOT) for name in self.names)

    def of(self, name: str) -> tuple[Strategy, ...]:
        """The strategies of one decision."""
        return self.strategies[self.number[name]]


def build_space(
    folded: FoldedGraph, tp: int, strategies_of: StrategiesOf, overrides: Overrides = NONE_GIVEN
) -> Space:
    """The choices of a folded graph over ``tp`` ranks; overridden parameters have one."""
    names, strategies = [], []
    for node in folded.nodes:
        names.append(node.name)
        strategies.append(_of_node(node, tp, strategies_of, overrides))
    for doors in folded.doors.values():
        for door in doors:
            names.append(door.name)
            strategies.append(_of_door(door, tp))
    return Space(folded=folded, tp=tp, names=tuple(names), strategies=tuple(strategies))


def _of_node(
    node: OpNode, tp: int, strategies_of: StrategiesOf, overrides: Overrides
) -> tuple[Strategy, ...]:
    if node.kind == "call":
        return strategies_of(node, tp)
    if node.name in overrides:
        return (_placed(overrides[node.name].placement, len(node.outputs)),)
    if node.kind == "parameter":
        return tuple(_placed(p, len(node.outputs)) for p in placements_of(node.outputs[0], tp))
    return (_placed(Replicate(), len(node.outputs)),)


def _of_door(door: Door, tp: int) -> tuple[Strategy, ...]:
    return tuple(
        Strategy(
            label=repr(placement),
            inputs=(Port(placement, grad_of(placement)),),
            outputs=(placement,),
            splits_work=False,
        )
        for placement in placements_of(door.meta, tp)
    )


def _placed(placement: Placement, outputs: int) -> Strategy:
    return Strategy(
        label=repr(placement), inputs=(), outputs=(placement,) * outputs, splits_work=False
    )


def placements_of(meta: TensorMeta, tp: int) -> Iterator[Placement]:
    """In which a tensor may rest: Replicate, or a shard of a dim without the batch that divides."""
    yield Replicate()
    for dim, size in enumerate(meta.shape):
        shard = Shard(dim)
        if tp > 1 and size and dim not in meta.batch_dims and divides(shard, meta.shape, tp):
            yield shard
