"""A region's menu: the modes of running again side by side, each solved exactly."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autoplan.search.elimination import elimination_order
from autoplan.search.operator_costs import MicrobatchCosts
from autoplan.search.regions.column import Column, Least, Prices, Within, value_of
from autoplan.search.regions.limited import least_limited
from autoplan.search.regions.patterns import Patterns
from autoplan.search.regions.program import Program, Structures
from autoplan.search.regions.reduction import Reduction, reduced
from autoplan.search.regions.terms import AMOUNTS, PRICED, Amounts
from autoplan.search.regions.ways import Mode, Ways
from autoplan.search.regions.working_terms import add_working

_MANY_ENTRIES = 40_000_000
"""Entries of tables, over all prices, after which it pays to make tables smaller."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """All ways of a region in one mode, as tables.

    Attributes:
        given: decisions that may be taken from outside.
        reduction: the amounts, without what is never better whatever the prices.
        operator_bytes: for each decision, bytes of the operator at work for each choice.
    """

    ways: Ways
    given: frozenset[int]
    reduction: Reduction
    operator_bytes: tuple[tuple[float, ...], ...]


class ModeTables:
    """The tables of a region in several modes, each made when it is first asked for.

    Attributes:
        structures: of programs made of them; those that differ in what is taken are alike.

    Args:
        ways: of each mode.
        given: decisions that may be taken from outside.
        patterns: those of the model that are known.
    """

    def __init__(
        self,
        ways: Sequence[Ways],
        costs: MicrobatchCosts,
        given: Collection[str],
        patterns: Patterns,
    ) -> None:
        self.ways = tuple(ways)
        self._costs = costs
        self._patterns = patterns
        self._given = given
        self.structures: Structures = {}
        self._made: dict[int, Table] = {}
        self._small: dict[int, Reduction] = {}
        self._worked: Counter[int] = Counter()
        self._all: ModeTables | None = None

    def only(self, modes: Collection[Mode]) -> ModeTables:
        """The tables of some of these modes, which are made once for both."""
        ways = [each for each in self.ways if each.mode in modes]
        found = ModeTables(ways, self._costs, self._given, self._patterns)
        found._all = self
        found.structures = self.structures
        return found

    @cached_property
    def offered(self) -> tuple[int, ...]:
        """The modes that are offered, whatever else is decided.

        Where single calls may run again, that can be twice the choices for each. If they are too
        many, blocks run again as a whole or not at all.
        """
        modes = range(len(self.ways))
        return tuple(mode for mode in modes if not self._is_too_close(mode)) or tuple(modes)

    @property
    def leaves_out_calls(self) -> bool:
        """Whether single calls of the region cannot run again, as was found when it was asked."""
        return "offered" in self.__dict__ and len(self.offered) < len(self.ways)

    def _is_too_close(self, mode: int) -> bool:
        ways = self.ways[mode]
        if ways.mode is not Mode.CALLS:
            return False
        if self._patterns.is_too_large(ways, self._costs):
            return True
        terms = self.table(mode).reduction.terms
        return elimination_order(terms.sizes, terms.tables) is None

    def table(self, mode: int) -> Table:
        """The tables of one mode."""
        ways = self.ways[mode]
        if self._all is not None:
            return self._all.table(self._all.ways.index(ways))
        if mode not in self._made:
            self._made[mode] = _table(ways, self._costs, self._given, self._patterns)
        return self._made[mode]

    def is_worked_hard(self, mode: int, entries: int) -> bool:
        """Counts entries of tables that values of a mode take; whether it is time for ``small``."""
        self._worked[mode] += entries
        return self._worked[mode] > _MANY_ENTRIES

    def small(self, mode: int) -> Reduction:
        """Of the same least values as those of the table, in fewer and smaller decisions."""
        if mode not in self._small:
            table = self.table(mode)
            self._small[mode] = reduced(table.reduction.terms, table.given, thoroughly=True)
        return self._small[mode]


def _table(ways: Ways, costs: MicrobatchCosts, given: Collection[str], patterns: Patterns) -> Table:
    terms = patterns.of(ways, costs).terms(ways, costs)
    working = [(0.0,) * size for size in terms.sizes]
    for node in ways.region.calls:
        number = ways.number[node.name]
        priced = costs.operators[costs.space.number[node.name]]
        working[number] = tuple(
            priced[option].transient_bytes for option in ways.decisions[number].options
        )
    if working and not ways.region.is_block:
        add_working(working, terms)
    numbers = frozenset(ways.number[name] for name in given if name in ways.number)
    return Table(
        ways=ways,
        given=numbers,
        reduction=reduced(terms, numbers),
        operator_bytes=tuple(working),
    )


class RegionMenu:
    """All ways to run a region, with some of its decisions taken.

    Args:
        tables: one for each mode, of which the first is taken when several are as cheap.
        taken: by decision name, the choice that it takes.
    """

    def __init__(self, tables: ModeTables, taken: Mapping[str, int]) -> None:
        self.tables = tables
        self._taken = [
            {ways.number[name]: choice for name, choice in taken.items()} for ways in tables.ways
        ]
        self._programs: dict[int, Program] = {}
        self._small: dict[int, Program] = {}
        self._known: dict[Prices, Least] = {}
        self._values: dict[Prices, float] = {}
        self._within: dict[tuple[Prices, Prices, float], Within] = {}

    def program(self, mode: int) -> Program:
        """What finds the best way in one mode."""
        if mode not in self._programs:
            table = self.tables.table(mode)
            terms = table.reduction.terms.restricted(self._taken[mode])
            self._programs[mode] = Program(terms, table.ways.region.key, self.tables.structures)
        return self._programs[mode]

    def least_operator_bytes(self) -> float:
        """What the largest operator at work holds at least, whatever is chosen."""
        working = self.tables.table(0).operator_bytes
        return max((min(row) for row in working), default=0.0)

    def least(self, prices: Prices) -> Least:
        """The best way at some prices; always the same for the same prices, found once."""
        if prices not in self._known:
            self._known[prices] = self._least(prices)
        return self._known[prices]

    def least_values(self, prices: Sequence[Prices]) -> npt.NDArray[np.float64]:
        """The values of ``least`` at several prices, but for rounding, without the columns."""
        new = [each for each in dict.fromkeys(prices) if each not in self._values]
        if new:
            self._values.update(zip(new, self._solved(new).tolist(), strict=True))
        return np.array([self._values[each] for each in prices])

    def within(self, prices: Prices, weights: Prices, limit_bytes: float) -> Within:
        """As of ``Menu``, nearly; found once."""
        asked = prices, weights, limit_bytes
        if asked not in self._within:
            self._within[asked] = self._limited(*asked)
        return self._within[asked]

    def _limited(self, prices: Prices, weights: Prices, limit_bytes: float) -> Within:
        small = {mode: self.tables.small(mode) for mode in self.tables.offered}
        terms = {mode: each.terms.restricted(self._taken[mode]) for mode, each in small.items()}
        vectors = np.array(_vector(prices)), np.array(_vector(weights))
        found = least_limited(terms, *vectors, limit_bytes)
        if found.point is None:
            return Within(found.bound, None)
        mode, taken = found.point.mode, self._taken[found.point.mode]
        choices = [taken.get(number, choice) for number, choice in enumerate(found.point.choices)]
        return Within(found.bound, self._column(mode, small[mode].complete(choices)))

    def _solved(self, prices: list[Prices]) -> npt.NDArray[np.float64]:
        values = np.full(len(prices), math.inf)
        asked = [self._worth_asking(each) for each in prices]
        vectors = np.array([_vector(each) for each in prices])
        for mode in range(len(self.tables.ways)):
            at = [number for number, modes in enumerate(asked) if mode in modes]
            if at:
                program = self._valuing(mode, len(at))
                values[at] = np.minimum(values[at], program.least_values(vectors[at]))
        return values

    def _valuing(self, mode: int, prices: int) -> Program:
        """What finds least values in one mode; columns are those of ``program`` alone, so that they
        do not depend on how much was asked."""
        if mode in self._small:
            return self._small[mode]
        program = self.program(mode)
        if not self.tables.is_worked_hard(mode, prices * program.entries):
            return program
        terms = self.tables.small(mode).terms.restricted(self._taken[mode])
        name = self.tables.ways[mode].region.key
        self._small[mode] = Program(terms, name, self.tables.structures)
        del self._programs[mode]
        return self._small[mode]

    def _least(self, prices: Prices) -> Least:
        vector = np.array(_vector(prices))
        asked = {mode: self.program(mode).least(vector) for mode in self._worth_asking(prices)}
        mode = min(asked, key=asked.__getitem__)
        column = self._column(mode, self.program(mode).choices())
        return Least(value_of(column, prices), column)

    def _worth_asking(self, prices: Prices) -> Sequence[int]:
        """The modes that can be best.

        Where memory is free, nothing gains from running again. Where nothing but memory has a
        price, what runs single calls again has the choices of what runs all again, and keeps more.
        """
        of = [ways.mode for ways in self.tables.ways]
        if not prices.kept_bytes and of[0] is Mode.NOTHING:
            return [0]
        if prices.is_of_memory and Mode.ALL in of:
            return [number for number, mode in enumerate(of) if mode is not Mode.CALLS]
        return self.tables.offered

    def _column(self, mode: int, found: tuple[int, ...]) -> Column:
        taken, table = self._taken[mode], self.tables.table(mode)
        choices = table.reduction.complete(
            [taken.get(number, choice) for number, choice in enumerate(found)]
        )
        amounts: Amounts = self.program(mode).amounts(found)
        working = table.operator_bytes
        return Column(
            choices=(mode, *choices),
            operator_bytes=max(
                (row[choice] for row, choice in zip(working, choices, strict=True)), default=0.0
            ),
            **dict(zip(AMOUNTS, amounts.tolist(), strict=True)),
        )


def _vector(prices: Prices) -> list[float]:
    """The prices of all amounts that have one, in the order of ``AMOUNTS``."""
    return [getattr(prices, name) for name in AMOUNTS[:PRICED]]
