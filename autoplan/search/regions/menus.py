"""The menus of all regions of a model, for one degree of ``tp`` and one microbatch.

Blocks of a kind share one menu; each part of the root has its own. What is decided for the whole
model at once is not decided by regions: the placements of boundaries, and of parameters that
several items read. A *free* menu takes for each region whatever suits it best (for bounds), a
*fixed* one what is given (for plans).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from autoplan.plan_details import BlockFlow
from autoplan.search.operator_costs import MicrobatchCosts
from autoplan.search.regions.boundaries import boundaries_of, boundary_of, folded_ref
from autoplan.search.regions.column import Column
from autoplan.search.regions.flow import flow_of
from autoplan.search.regions.kept import kept_of
from autoplan.search.regions.menu import ModeTables, RegionMenu
from autoplan.search.regions.messages import Sent, exchanges_of, messages_of
from autoplan.search.regions.patterns import Patterns
from autoplan.search.regions.region import apart_of, key_of, regions_of
from autoplan.search.regions.ways import Mode, Ways, crossing_name, ways_of, whole_strategy
from autoplan.sharding.placement import Placement, Replicate, local_fraction
from autoplan.trace.graph import Ref
from autoplan.trace.stack import Stack

Recompute = Literal["free", "blocks", "none", "full"]

WHOLE_MODES = Mode.NOTHING, Mode.ALL
"""All of a block runs again, or nothing of it."""

_MODES: Mapping[Recompute, tuple[Mode, ...]] = {
    "free": (Mode.NOTHING, Mode.ALL, Mode.CALLS),
    "blocks": WHOLE_MODES,
    "none": (Mode.NOTHING,),
    "full": (Mode.ALL,),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedParameter:
    """A parameter that several items read, which has one placement in the whole model.

    Attributes:
        items: numbers of the items, ascending; each of their columns counts its elements.
        placements: in which it may be stored.
        elements: on one rank, for each placement.
    """

    name: str
    items: tuple[int, ...]
    placements: tuple[Placement, ...]
    elements: tuple[float, ...]
    trainable: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class RegionDecisions:
    """What a column decides, by names of the folded graph.

    Attributes:
        strategies: label of the strategy of each call.
        parameters: placement of each parameter that the region reads.
        inputs: placement of each of ``Block.inputs``; empty outside blocks.
        recomputed: calls that run again in the backward, views among them.
        converted_again: numbers among ``inputs`` whose conversions run again in the backward.
        recomputes_all: everything runs again whose result the backward needs.
    """

    strategies: Mapping[str, str]
    parameters: Mapping[str, Placement]
    inputs: tuple[Placement, ...]
    recomputed: tuple[str, ...]
    converted_again: tuple[int, ...]
    recomputes_all: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Crossing:
    """What crosses one cut: bytes of a microbatch on one rank, there and back."""

    forward_bytes: float
    backward_bytes: float


class RegionMenus:
    """Menus by region.

    Attributes:
        keys: the region of each item of the stack.
        boundaries: what crosses between items, by placement that it shares.
        shared_parameters: those that several items read.
        apart: names of those that blocks are among the readers of (see ``apart_of``).
        patterns: what tables are sums of.
    """

    def __init__(
        self,
        stack: Stack,
        costs: MicrobatchCosts,
        recompute: Recompute,
        wider: RegionMenus | None = None,
        patterns: Patterns | None = None,
    ) -> None:
        space = costs.space
        self.patterns = patterns or Patterns()
        self.stack = stack
        self.costs = costs
        self.keys = tuple(key_of(item) for item in stack.items)
        self.boundaries = boundaries_of(stack, costs.sizes, space.axis)
        self.regions = regions_of(stack, space.folded, costs.sizes.nodes, self.boundaries)
        self.apart = apart_of(stack)
        self._modes = _MODES[recompute]
        self._wider = wider
        self._tables: dict[str, ModeTables] = {}
        self._menus: dict[tuple[str, tuple[tuple[str, int], ...]], RegionMenu] = {}

    @cached_property
    def shared_parameters(self) -> tuple[SharedParameter, ...]:
        readers: dict[str, list[int]] = {}
        for number, names in enumerate(self.stack.parameters):
            for name in names:
                readers.setdefault(name, []).append(number)
        return tuple(
            self._shared_parameter(name, tuple(items))
            for name, items in readers.items()
            if len(items) > 1
        )

    def _shared_parameter(self, name: str, items: tuple[int, ...]) -> SharedParameter:
        space, meta = self.costs.space, self.costs.sizes.nodes[name].outputs[0]
        placements = tuple(strategy.outputs[0] for strategy in space.of(name))
        return SharedParameter(
            name=name,
            items=items,
            placements=placements,
            elements=tuple(meta.numel * local_fraction(each, space.tp) for each in placements),
            trainable=meta.requires_grad,
        )

    @cached_property
    def shared_s(self) -> float:
        """Seconds of what every stage runs for itself for one microbatch, whole on every rank."""
        space = self.costs.space
        return sum(
            self.costs.operators[space.number[name]][whole_strategy(space.of(name))].forward_s
            for name in self.stack.shared
        )

    @cached_property
    def shared_strategies(self) -> Mapping[str, str]:
        """The labels of the strategies of what every stage runs for itself."""
        space = self.costs.space
        return {
            name: space.of(name)[whole_strategy(space.of(name))].label for name in self.stack.shared
        }

    def free(self, key: str) -> RegionMenu:
        """A region's menu with its own choice of what is decided for the whole model.

        A boundary that both enters and leaves the region has one placement all the same.
        """
        return self._menu(key, {})

    def runs_whole(self, key: str) -> bool:
        """Whether a region runs all again or nothing, both of which are offered."""
        tables = self.tables(key)
        return tuple(tables.ways[mode].mode for mode in tables.offered) == WHOLE_MODES

    def in_mode(self, key: str, mode: Mode) -> RegionMenu:
        """As ``free``, in one mode that is offered."""
        return RegionMenu(self.tables(key).only((mode,)), {})

    def fixed(self, key: str, given: Mapping[str, Placement]) -> RegionMenu:
        """A region's menu with placements of boundaries and shared parameters given, by name.

        Names that do not concern the region change nothing; what is not named is free.

        Raises:
            ValueError: a placement that is not offered.
        """
        region = self.regions[key]
        taken: dict[str, int] = {}
        for number in (*region.entries.values(), *region.exits.values()):
            boundary = self.boundaries[number]
            if boundary.name in given:
                taken[crossing_name(boundary)] = boundary.placements.index(given[boundary.name])
        for parameter in self.shared_parameters:
            if parameter.name in region.parameters and parameter.name in given:
                taken[parameter.name] = parameter.placements.index(given[parameter.name])
        return self._menu(key, taken)

    def _menu(self, key: str, taken: Mapping[str, int]) -> RegionMenu:
        known = key, tuple(sorted(taken.items()))
        if known not in self._menus:
            self._menus[known] = RegionMenu(self.tables(key), taken)
        return self._menus[known]

    def tables(self, key: str) -> ModeTables:
        """A region's ways, in each mode that is allowed."""
        if key not in self._tables:
            region = self.regions[key]
            modes = self._modes if region.is_block and region.needed else (Mode.NOTHING,)
            if self._wider is not None:
                self._tables[key] = self._wider.tables(key).only(modes)
                return self._tables[key]
            given = [crossing_name(boundary) for boundary in self.boundaries]
            given += [parameter.name for parameter in self.shared_parameters]
            space, boundaries = self.costs.space, self.boundaries
            ways = [ways_of(region, space, boundaries, mode) for mode in modes]
            self._tables[key] = ModeTables(ways, self.costs, given, self.patterns)
        return self._tables[key]

    @property
    def without_calls(self) -> frozenset[str]:
        """Regions of which single calls are not offered to run again."""
        return frozenset(key for key, tables in self._tables.items() if tables.leaves_out_calls)

    def crossing_bytes(self, given: Mapping[str, Placement]) -> tuple[Crossing, ...]:
        """For each cut, what one rank sends over it.

        Args:
            given: the placement of every boundary, by name.
        """
        graph, space = self.stack.graph, self.costs.space
        number = boundary_of(self.boundaries)
        known: dict[Ref, tuple[float, bool]] = {}
        for ref in {ref for refs in self.stack.crossings for ref in refs}:
            folded = folded_ref(graph, ref)
            placement = given[self.boundaries[number[folded]].name]
            nbytes = self.costs.sizes.meta(folded).nbytes * local_fraction(placement, space.tp)
            known[ref] = nbytes, graph.meta(ref).requires_grad
        return tuple(
            Crossing(
                forward_bytes=sum(known[ref][0] for ref in refs),
                backward_bytes=sum(known[ref][0] for ref in refs if known[ref][1]),
            )
            for refs in self.stack.crossings
        )

    def decisions(self, key: str, column: Column) -> RegionDecisions:
        """What a column of a region's menu decides."""
        mode, *choices = column.choices
        return _decisions(self.tables(key).ways[mode], choices)

    def messages(self, key: str, column: Column) -> Mapping[str, Sent]:
        """A column's messages over ``tp`` for one microbatch, by collective."""
        mode, *choices = column.choices
        return messages_of(self.tables(key).ways[mode], self.costs, choices)

    def exchanges(self, key: str, column: Column) -> Mapping[str, Sent]:
        """A column's messages over ``cp`` for one microbatch, by collective."""
        mode, *choices = column.choices
        return exchanges_of(self.tables(key).ways[mode], self.costs, choices)

    def kept(self, key: str, column: Column) -> Mapping[str, float]:
        """What a column keeps of one microbatch, by the node that makes it."""
        mode, *choices = column.choices
        return kept_of(self.tables(key).ways[mode], self.costs, choices)

    def flow(self, key: str, column: Column, block: str) -> BlockFlow | None:
        """How a block of a region runs with a column; None for one too large to be drawn."""
        mode, *choices = column.choices
        return flow_of(self.tables(key).ways[mode], self.costs, choices, block)


def region_menus(
    stack: Stack,
    costs: MicrobatchCosts,
    recompute: Recompute = "free",
    wider: RegionMenus | None = None,
    patterns: Patterns | None = None,
) -> RegionMenus:
    """The menus of a model.

    Args:
        recompute: what blocks may run again in the backward: any of their calls (``free``),
            everything that the backward needs or nothing (``blocks``), or always the one of these.
        wider: menus of the same model and costs that allow more, to share what both have.
        patterns: what menus of the same model share whatever the costs.
    """
    return RegionMenus(stack, costs, recompute, wider, patterns)


def _decisions(ways: Ways, choices: list[int]) -> RegionDecisions:
    region, space = ways.region, ways.space
    option = {
        name: ways.decisions[number].options[choices[number]]
        for name, number in ways.number.items()
    }
    doors = [Ref(door.name) for door in region.folded.doors.get(region.key, ())]
    return RegionDecisions(
        strategies={
            node.name: space.of(node.name)[option[node.name]].label for node in region.calls
        },
        parameters={name: space.of(name)[option[name]].outputs[0] for name in region.parameters},
        inputs=tuple(_entered(ways, door, option) for door in doors),
        recomputed=tuple(node.name for node in region.calls if ways.runs_again(node).at(choices)),
        converted_again=tuple(
            number
            for number, door in enumerate(doors)
            if door in region.entries and ways.made_again(door).at(choices)
        ),
        recomputes_all=ways.mode is Mode.ALL,
    )


def _entered(ways: Ways, door: Ref, option: Mapping[str, int]) -> Placement:
    """The placement in which something enters; what every stage has for itself is whole."""
    if door not in ways.region.entries:
        return Replicate()
    boundary = ways.boundaries[ways.region.entries[door]]
    return boundary.placements[option[crossing_name(boundary)]]
