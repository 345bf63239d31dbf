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
from autoplan.sharding.mesh import MeshAxis
from autoplan.sharding.placement import Placement, Replicate, Shard, divides, grad_of
from autoplan.sharding.strategies import Port, Strategy
from autoplan.trace.graph import OpNode, TensorMeta

StrategiesOf = Callable[[OpNode, MeshAxis], tuple[Strategy, ...]]
"""Of a call on ``tp``, whatever the microbatch."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """Decisions and their strategies; ``names`` are folded nodes and doors."""

    folded: FoldedGraph
    axis: MeshAxis
    names: tuple[str, ...]
    strategies: tuple[tuple[Strategy, ...], ...]

    @property
    def tp(self) -> int:
        return self.axis.size

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
    folded: FoldedGraph,
    axis: MeshAxis,
    strategies_of: StrategiesOf,
    overrides: Overrides = NONE_GIVEN,
) -> Space:
    """The choices of a folded graph on ``tp``; overridden parameters have one."""
    names, strategies = [], []
    for node in folded.nodes:
        names.append(node.name)
        strategies.append(_of_node(node, axis, strategies_of, overrides))
    for doors in folded.doors.values():
        for door in doors:
            names.append(door.name)
            strategies.append(_of_door(door, axis))
    return Space(folded=folded, axis=axis, names=tuple(names), strategies=tuple(strategies))


def _of_node(
    node: OpNode, axis: MeshAxis, strategies_of: StrategiesOf, overrides: Overrides
) -> tuple[Strategy, ...]:
    if node.kind == "call":
        return strategies_of(node, axis)
    if node.name in overrides:
        return (_placed(overrides[node.name].placement, len(node.outputs)),)
    if node.kind == "parameter":
        return tuple(_placed(p, len(node.outputs)) for p in placements_of(node.outputs[0], axis))
    return (_placed(Replicate(), len(node.outputs)),)


def _of_door(door: Door, axis: MeshAxis) -> tuple[Strategy, ...]:
    return tuple(
        Strategy(
            label=repr(placement),
            inputs=(Port(placement, grad_of(placement)),),
            outputs=(placement,),
            splits_work=False,
        )
        for placement in placements_of(door.meta, axis)
    )


def _placed(placement: Placement, outputs: int) -> Strategy:
    return Strategy(
        label=repr(placement), inputs=(), outputs=(placement,) * outputs, splits_work=False
    )


def placements_of(meta: TensorMeta, axis: MeshAxis) -> Iterator[Placement]:
    """In which a tensor may rest: Replicate, or a shard of a dim that divides.

    The batch is one where the ranks share samples, of which they are taken to have as many each.
    """
    yield Replicate()
    for dim, size in enumerate(meta.shape):
        shard = Shard(dim)
        if axis.size == 1 or not size:
            continue
        if dim in meta.batch_dims:
            if axis.shares_samples:
                yield shard
        elif divides(shard, meta.shape, axis.size):
            yield shard
