"""A price on memory: bounds and plans for a problem whose fastest plan does not fit.

With a price of p >= 0 seconds a page, and pages(c) no more than the memory of choices c,

    min over c of time(c) + p * (pages(c) - limit)

is no more than the time of any plan that fits (Lagrangian relaxation), and elimination finds it in
milliseconds. The price at which a plan that is too large costs as much as one that is not is tried
next (Kelley's cutting planes), so the bound rises to the best that prices can give. Plans met on
the way that fit are answers. What prices cannot decide is the integer program's, which needs those
choices alone that the bound allows in anything faster than the best plan met.

``pages`` are those of the backward. Where several things compete for the largest (peaks, operators
at work), it counts the one that was largest in the fastest plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoplan.search import tables
from autoplan.search.elimination import Costs, Elimination, Table
from autoplan.search.fixing import Kept
from autoplan.search.hiding import Hiding
from autoplan.search.problem import (
    Problem,
    Solution,
    held_storages,
    valued,
)

_MOST_PRICES = 12
_ENOUGH = 1e-9


@dataclass(frozen=True, slots=True)
class _Plan:
    """A plan's time, and by how many pages it exceeds the limit at least."""

    time_s: float
    over: float


@dataclass(frozen=True, slots=True)
class _Sums:
    """What is minimised at a price: costs of single decisions, of several together, and of none."""

    single: list[Costs]
    tables: tuple[Table, ...]
    fixed_s: float


class MemoryPrice:
    """Prices for one problem.

    Attributes:
        best: the fastest plan met that fits.
        bound_s: no plan that fits is faster; infinite when none fits.
    """

    def __init__(self, problem: Problem, limit_pages: int, fastest: Solution) -> None:
        self.best: Solution | None = None
        self.bound_s = fastest.bound_s
        self._problem = problem
        self._limit_pages = limit_pages
        self._fastest = fastest
        self._tightest: _Sums | None = None
        self._hiding = Hiding(problem)
        self._conversions = tables.conversion_tables(problem)
        self._single, group = _single_pages(problem, fastest.choices)
        self._elimination = Elimination(
            [len(node.choices) for node in problem.nodes],
            (*tables.scopes(problem), *tables.page_scopes(problem)),
        )
        self._pages = tables.page_tables(problem, group) if self._elimination.is_small else ()

    def search(self, relative_gap: float, below_s: float) -> bool:
        """Tries prices; whether ``answer`` is the answer.

        It is when it is that close to the bound, or when the bound says that nothing that fits
        takes less than ``below_s``.
        """
        if not self._elimination.is_small:
            return False
        large, small = self._plan(self._fastest.choices), self._smallest()
        if small.over > 0:
            self.bound_s = math.inf
            return True
        for _ in range(_MOST_PRICES if large.over > 0 else 0):
            if self._is_within(_ENOUGH):
                break
            price = (small.time_s - large.time_s) / (large.over - small.over)
            tried = self._priced(max(price, 0.0))
            if tried.over > 0:
                large = tried
            else:
                small = tried
        enough = self.best is not None and self.bound_s >= below_s
        return enough or self._is_within(relative_gap)

    def _is_within(self, gap: float) -> bool:
        return self.best is not None and self.bound_s >= self.best.time_s * (1 - gap)

    def _smallest(self) -> _Plan:
        """The choices with the fewest pages of all that conversions allow."""
        possible = (
            Table(table.scope, np.where(np.isinf(table.costs), math.inf, 0.0))
            for table in self._conversions
        )
        _, choices = self._elimination.minimise(self._single, (*self._pages, *possible))
        return self._plan(choices)

    def _priced(self, price: float) -> _Plan:
        """The choices that are best at a price; raises the bound."""
        sums = self._sums(price)
        least_s, choices = self._elimination.minimise(sums.single, sums.tables)
        if sums.fixed_s + least_s > self.bound_s or self._tightest is None:
            self._tightest = sums
        self.bound_s = max(self.bound_s, sums.fixed_s + least_s)
        self._hiding.follow(choices)
        return self._plan(choices)

    def _sums(self, price: float) -> _Sums:
        single = [
            seconds + price * pages
            for seconds, pages in zip(self._hiding.seconds(), self._single, strict=True)
        ]
        paid = (Table(table.scope, price * table.costs) for table in self._pages)
        fixed_s = price * (self._problem.fixed_pages - self._limit_pages)
        return _Sums(single, (*self._conversions, *paid), self._hiding.fixed_s + fixed_s)

    def below(self, time_s: float) -> Kept:
        """By decision, the choices with which a plan that fits could take less than ``time_s``."""
        sums = self._tightest or self._sums(0.0)
        least = self._elimination.least_with(sums.single, sums.tables)
        return [tuple(map(int, np.flatnonzero(row + sums.fixed_s < time_s))) for row in least]

    def _plan(self, choices: tuple[int, ...]) -> _Plan:
        """Judges choices, and keeps them if they are the best that fit."""
        problem, best = self._problem, self.best
        found = valued(problem, choices)
        is_better = best is None or found.time_s < best.time_s
        if is_better and found.memory_pages <= self._limit_pages:
            self.best = found
        pages = sum(float(row[c]) for row, c in zip(self._single, choices, strict=True))
        pages += problem.fixed_pages + sum(table.at(choices) for table in self._pages)
        return _Plan(found.time_s, pages - self._limit_pages)

    @property
    def answer(self) -> Solution | None:
        """``best`` with its bound."""
        if self.best is None:
            return None
        return replace(self.best, bound_s=min(self.bound_s, self.best.time_s))


def _single_pages(problem: Problem, choices: Sequence[int]) -> tuple[list[Costs], str | None]:
    """Pages of every choice by itself, and the group of storages that is largest at work.

    What was the largest under ``choices`` counts.
    """
    single = [
        np.array([float(choice.memory_pages) for choice in node.choices]) for node in problem.nodes
    ]
    for peak in problem.peaks:
        if peak.groups:
            largest = max(peak.groups, key=lambda group: sum(row[choices[v]] for v, row in group))
            tables.add_rows(single, 1.0, largest)
    groups: dict[str, int] = {}
    for storage in held_storages(problem, choices):
        groups[storage.group] = groups.get(storage.group, 0) + storage.transient_pages
    transient = [
        node.choices[c].transient_pages for node, c in zip(problem.nodes, choices, strict=True)
    ]
    group = max(groups, key=lambda name: groups[name], default=None)
    if group is not None and groups[group] >= max(transient):
        return single, group
    number = transient.index(max(transient))
    row = [choice.transient_pages for choice in problem.nodes[number].choices]
    tables.add_rows(single, 1.0, [(number, row)])
    return single, None
