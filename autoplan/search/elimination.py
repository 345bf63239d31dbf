"""The exact optimum of many small decisions, by eliminating one decision after another.

What is minimised is a sum of tables, each over few decisions: one for every decision, one for every
tensor over its producer and readers. Eliminating decision v leaves the table

    m(neighbours) = min over choices c of v of the sum of all tables that involve v

over the decisions that shared a table with v, and the optimum stays what it was (bucket
elimination: R. Dechter, Artificial Intelligence 113, 1999). Decisions go in the order of the
smallest table left. Graphs of operators are nearly chains, so tables stay small and one optimum
takes milliseconds, where an integer program takes a tenth of a second or more.

Among equal choices the first is taken, so answers do not depend on anything else.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LARGEST_TABLE = 1 << 18
"""Entries of a table that is still worth making."""

Costs = npt.NDArray[np.float64]
Scope = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Costs for every combination of choices of the decisions in ``scope``, ascending."""

    scope: Scope
    costs: Costs

    def at(self, choices: Sequence[int]) -> float:
        """The cost of an assignment of all decisions."""
        return float(self.costs[tuple(choices[number] for number in self.scope)])


@dataclass(frozen=True, slots=True)
class _Step:
    """A decision at its turn.

    ``table`` is the sum of all that involve it, ``axis`` its own; ``least`` is over the ``rest`` of
    the scope, of which ``parent`` goes first.
    """

    number: int
    table: Table
    axis: int
    rest: Scope
    parent: int | None
    least: Costs


class Elimination:
    """The order in which decisions go, given which of them share a table.

    Args:
        sizes: number of choices of every decision.
        scopes: decisions of every table that ``minimise`` will get.
    """

    def __init__(self, sizes: Sequence[int], scopes: Iterable[Scope]) -> None:
        self._sizes = sizes
        self._order = _order(sizes, scopes)

    @property
    def is_small(self) -> bool:
        """Whether all tables are small enough; ``minimise`` may be called only then."""
        return self._order is not None

    @property
    def order(self) -> tuple[int, ...]:
        """The decisions, first the one that goes first; only if all tables are small."""
        assert self._order is not None
        return self._order

    def minimise(
        self, single: Sequence[Costs], tables: Iterable[Table]
    ) -> tuple[float, tuple[int, ...]]:
        """The least cost and the choices that have it; infinite when none are possible.

        Args:
            single: costs of every choice, by decision.
            tables: what several decisions cost together.
        """
        steps = self._steps(single, tables)
        least = sum(float(step.least) for step in steps if step.parent is None)
        choices = [0] * len(self._sizes)
        for step in reversed(steps):
            at = tuple(choices[other] for other in step.rest)
            choices[step.number] = int(step.table.costs.argmin(step.axis)[at])
        return least, tuple(choices)

    def least_with(self, single: Sequence[Costs], tables: Iterable[Table]) -> list[Costs]:
        """For every choice of every decision, the least cost of all assignments that have it.

        Backwards through the order, every table gets what the decisions that went later cost at
        least; costs of parts that share no table add up.
        """
        steps = self._steps(single, tables)
        total = sum(float(step.least) for step in steps if step.parent is None)
        whole: dict[int, Table] = {}
        found = list(single)
        for step in reversed(steps):
            if step.parent is None:
                beyond: Costs = np.array(total)
            else:
                parent = whole[step.parent]
                gone = tuple(i for i, n in enumerate(parent.scope) if n not in step.rest)
                beyond = parent.costs.min(gone)
            known = np.isfinite(step.least)
            later = np.subtract(beyond, step.least, where=known, out=np.full(known.shape, math.inf))
            costs = step.table.costs + np.expand_dims(later, step.axis)
            whole[step.number] = Table(step.table.scope, costs)
            found[step.number] = costs.min(tuple(i for i in range(costs.ndim) if i != step.axis))
        return found

    def _steps(self, single: Sequence[Costs], tables: Iterable[Table]) -> list[_Step]:
        """Every decision with the tables that involve it when it goes, added up."""
        assert self._order is not None
        waiting: list[list[Table]] = [[] for _ in self._sizes]
        place = {number: turn for turn, number in enumerate(self._order)}
        for table in tables:
            waiting[min(place[number] for number in table.scope)].append(table)
        steps = []
        for turn, number in enumerate(self._order):
            here = [Table((number,), single[number]), *waiting[turn]]
            scope = tuple(sorted({other for table in here for other in table.scope}))
            axis = scope.index(number)
            rest = (*scope[:axis], *scope[axis + 1 :])
            costs = _sum(here, scope)
            parent = min(rest, key=lambda other: place[other], default=None)
            step = _Step(number, Table(scope, costs), axis, rest, parent, costs.min(axis))
            steps.append(step)
            if parent is not None:
                waiting[place[parent]].append(Table(rest, step.least))
        return steps


def along(number: int, scope: Scope, values: Sequence[int]) -> npt.NDArray[np.intp]:
    """Values of each choice of one decision, as they enter a table over ``scope``."""
    return np.array(values).reshape([-1 if other == number else 1 for other in scope])


def _sum(tables: Iterable[Table], scope: Scope) -> Costs:
    """The tables added up over the decisions of ``scope``, of which each has some."""
    total: Costs = np.zeros((1,) * len(scope))
    for table in tables:
        sizes = iter(table.costs.shape)
        held = set(table.scope)
        total = total + table.costs.reshape([next(sizes) if n in held else 1 for n in scope])
    return total


def _order(sizes: Sequence[int], scopes: Iterable[Scope]) -> tuple[int, ...] | None:
    """Decisions by the smallest table that eliminating them makes; None if one is too large."""
    near: list[set[int]] = [set() for _ in sizes]
    for scope in scopes:
        for number in scope:
            near[number].update(scope)
    for number, others in enumerate(near):
        others.discard(number)

    def entries(number: int) -> int:
        return math.prod(sizes[other] for other in near[number]) * sizes[number]

    waiting = [(entries(number), number) for number in range(len(sizes))]
    heapq.heapify(waiting)
    order: dict[int, None] = {}
    while waiting:
        known, number = heapq.heappop(waiting)
        if number in order or known != entries(number):
            continue
        if known > LARGEST_TABLE:
            return None
        order[number] = None
        for other in near[number]:
            near[other] |= near[number]
            near[other] -= {other, number}
            heapq.heappush(waiting, (entries(other), other))
    return tuple(order)
