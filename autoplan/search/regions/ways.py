"""The decisions of a region: strategies, placements, and what runs again in the backward.

A call of a block chooses a strategy and whether its forward runs again. A view follows what it is a
view of; one of something whole stays whole, from which every reader can cut its part. A parameter
chooses its storage, a boundary its placement. What enters a block is kept as it entered if its
*entry* converts again in the backward; else the converted copies are.

Running again takes one of three modes: nothing does; single calls do; everything does whose result
the backward needs. In the last two a block keeps whatever enters it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from autoplan.search.regions.boundaries import Boundary
from autoplan.search.regions.region import Region
from autoplan.search.regions.terms import NEVER, Flag
from autoplan.search.space import Space
from autoplan.sharding.placement import Placement, Replicate
from autoplan.sharding.strategies import Strategy
from autoplan.trace.graph import OpNode, Ref


class Mode(Enum):
    """What of a block runs again in its backward."""

    NOTHING = "nothing"
    CALLS = "calls"
    ALL = "all"


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """A decision: for each choice a number among its options, and whether it runs again.

    Attributes:
        name: of a call or parameter node; ``crossing_name`` or ``entry_name``.
        options: strategy or placement number of each choice.
        again: whether each choice runs again.
    """

    name: str
    options: tuple[int, ...]
    again: tuple[bool, ...]


@dataclass(frozen=True, kw_only=True)
class Ways:
    """All decisions of a region in one mode."""

    region: Region
    space: Space
    boundaries: tuple[Boundary, ...]
    mode: Mode
    decisions: tuple[Decision, ...]

    @cached_property
    def number(self) -> Mapping[str, int]:
        return {decision.name: number for number, decision in enumerate(self.decisions)}

    @property
    def keeps_entries(self) -> bool:
        """Whether what enters is kept, whoever needs it."""
        return self.region.is_block and self.mode is not Mode.NOTHING

    def strategies(self, name: str) -> tuple[Strategy, ...]:
        """For each choice of a call, its strategy."""
        options = self.space.of(name)
        return tuple(options[k] for k in self.decisions[self.number[name]].options)

    def placements(self, name: str) -> tuple[Placement, ...]:
        """For each choice of a parameter, its storage."""
        options = self.space.of(name)
        return tuple(options[k].outputs[0] for k in self.decisions[self.number[name]].options)

    def crossing(self, boundary: int) -> int:
        """The decision of a boundary."""
        return self.number[crossing_name(self.boundaries[boundary])]

    def made_again(self, ref: Ref) -> Flag:
        """When what allocated the storage of ``ref`` is made again."""
        ref = self.region.allocator(ref)
        if ref.node in self.region.by_name:
            return self._again(ref.node)
        if ref in self.region.entries and self.region.is_block:
            return self._again(entry_name(ref))
        return NEVER

    def runs_again(self, node: OpNode) -> Flag:
        """When a call runs again."""
        if self.region.is_view(node):
            return self.made_again(Ref(node.name))
        return self._again(node.name)

    def _again(self, name: str) -> Flag:
        number = self.number[name]
        return Flag(number, self.decisions[number].again)


def crossing_name(boundary: Boundary) -> str:
    """The name of the decision about a boundary."""
    return f"|{boundary.name}"


def entry_name(ref: Ref) -> str:
    """The name of the decision about an entry's conversions in the backward."""
    return f">{ref.node}[{ref.index}]"


def ways_of(region: Region, space: Space, boundaries: tuple[Boundary, ...], mode: Mode) -> Ways:
    """The decisions of a region."""
    return Ways(
        region=region,
        space=space,
        boundaries=boundaries,
        mode=mode,
        decisions=(
            *_crossings(region, boundaries),
            *_entries(region, mode),
            *(_stored(space, name) for name in region.parameters),
            *(_call(region, space, node, mode) for node in region.calls),
        ),
    )


def _crossings(region: Region, boundaries: tuple[Boundary, ...]) -> Iterator[Decision]:
    for number in dict.fromkeys((*region.entries.values(), *region.exits.values())):
        count = len(boundaries[number].placements)
        yield Decision(
            name=crossing_name(boundaries[number]),
            options=tuple(range(count)),
            again=(False,) * count,
        )


def _entries(region: Region, mode: Mode) -> Iterator[Decision]:
    for ref in region.entries if region.is_block else ():
        again = _again(mode, is_needed=True)
        yield Decision(name=entry_name(ref), options=(0,) * len(again), again=again)


def _stored(space: Space, name: str) -> Decision:
    count = len(space.of(name))
    return Decision(name=name, options=tuple(range(count)), again=(False,) * count)


def _call(region: Region, space: Space, node: OpNode, mode: Mode) -> Decision:
    count = len(space.of(node.name))
    mode = mode if region.is_block else Mode.NOTHING
    kept_whole = region.is_view(node) and region.is_whole(Ref(node.name))
    options = (whole_strategy(space.of(node.name)),) if kept_whole else tuple(range(count))
    again = _again(mode, is_needed=node.name in region.needed)
    return Decision(
        name=node.name,
        options=tuple(option for option in options for _ in again),
        again=tuple(flag for _ in options for flag in again),
    )


def whole_strategy(strategies: tuple[Strategy, ...]) -> int:
    """The first strategy that reads and leaves everything whole on every rank."""
    return next(
        number
        for number, strategy in enumerate(strategies)
        if all(port.placement == Replicate() for port in strategy.inputs)
        and all(placement == Replicate() for placement in strategy.outputs)
    )


def _again(mode: Mode, *, is_needed: bool) -> tuple[bool, ...]:
    if mode is Mode.NOTHING or not is_needed:
        return (False,)
    return (True,) if mode is Mode.ALL else (False, True)
