"""The column of a region whose decisions are known: the way back from ``RegionMenus.decisions``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from autoplan.errors import PlanError
from autoplan.search.regions.column import Column, Prices
from autoplan.search.regions.menu import ModeTables, RegionMenu
from autoplan.search.regions.menus import RegionDecisions, RegionMenus
from autoplan.search.regions.ways import Decision, Mode, Ways, crossing_name, entry_name
from autoplan.sharding.placement import Placement
from autoplan.trace.graph import Ref

_SECONDS = Prices(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)


class ChosenMenu:
    """A region whose own decisions are taken; what crosses to other regions is left to say.

    Raises:
        PlanError: a choice that is not offered.
    """

    def __init__(self, menus: RegionMenus, key: str, decided: RegionDecisions) -> None:
        modes = [ways.mode for ways in menus.tables(key).ways]
        self._mode = modes.index(_mode_of(decided, modes))
        ways = menus.tables(key).ways[self._mode]
        names = [decision.name for decision in ways.decisions]
        self._tables = ModeTables((ways,), menus.costs, names, menus.patterns)
        self._taken = dict(_taken(ways, decided))
        self._boundaries = {one.name: one for one in menus.boundaries}
        self._crossings = {crossing_name(one): one.name for one in menus.boundaries}

    def column(self, boundary: Mapping[str, Placement]) -> Column:
        """The column where boundaries cross in given placements, by name."""
        taken = dict(self._taken)
        for decision in self._tables.ways[0].decisions:
            if decision.name in self._crossings:
                name = self._crossings[decision.name]
                taken[decision.name] = self._boundaries[name].placements.index(boundary[name])
        found = RegionMenu(self._tables, taken).least(_SECONDS).column
        return replace(found, choices=(self._mode, *found.choices[1:]))


def _mode_of(decided: RegionDecisions, modes: list[Mode]) -> Mode:
    if decided.recomputes_all and Mode.ALL in modes:
        return Mode.ALL
    return Mode.CALLS if decided.recomputed or decided.converted_again else Mode.NOTHING


def _taken(ways: Ways, decided: RegionDecisions) -> Iterator[tuple[str, int]]:
    """By decision name, the choice that is taken, of all but boundaries."""
    doors = [Ref(door.name) for door in ways.region.folded.doors.get(ways.region.key, ())]
    again = {entry_name(doors[number]) for number in decided.converted_again}
    for ref in ways.region.entries if ways.region.is_block else ():
        decision = ways.decisions[ways.number[entry_name(ref)]]
        yield decision.name, _choice(decision, {0}, runs_again=decision.name in again)
    for name in ways.region.parameters:
        decision, placement = ways.decisions[ways.number[name]], decided.parameters[name]
        options = {n for n, each in enumerate(ways.space.of(name)) if each.outputs[0] == placement}
        yield name, _choice(decision, options, runs_again=False)
    for node in ways.region.calls:
        decision, label = ways.decisions[ways.number[node.name]], decided.strategies[node.name]
        options = {n for n, each in enumerate(ways.space.of(node.name)) if each.label == label}
        yield node.name, _choice(decision, options, runs_again=node.name in decided.recomputed)


def _choice(decision: Decision, options: set[int], *, runs_again: bool) -> int:
    fitting = [n for n, option in enumerate(decision.options) if option in options]
    if not fitting:
        raise PlanError(f"the plan has a choice for {decision.name} that is none now; plan again")
    same = [number for number in fitting if decision.again[number] == runs_again]
    return (same or fitting)[0]
