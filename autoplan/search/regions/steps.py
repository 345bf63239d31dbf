"""The steps that eliminate a region's decisions, and memory in which they run for several prices.

Bucket elimination (``autoplan.search.elimination``) with everything that does not depend on prices
settled once. Axes of all tables go in the order of elimination, so that each step minimises over
its first axis (which is fast), and what it leaves fits into the next table without turning; prices
have one more axis, the last. Tables of a step are added up in the order that keeps sums small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float64]
_Axes = tuple[int, ...]
_Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A decision at its turn.

    Attributes:
        number: the decision.
        tables: which of all tables involve it; those that steps leave are numbered last.
        shapes: of these tables, and then of the sums, over all decisions of the step.
        sums: pairs of them to add, where each sum is one more.
        held: for each of these tables, the decisions of its other axes.
    """

    number: int
    tables: tuple[int, ...]
    shapes: tuple[_Shape, ...]
    sums: tuple[tuple[int, int], ...]
    held: tuple[_Axes, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """All steps.

    Attributes:
        decisions: how many there are.
        given: shapes of the tables that are given.
        left: shapes of the tables that steps leave; they are numbered after those given.
    """

    decisions: int
    given: tuple[_Shape, ...]
    steps: tuple[Step, ...]
    left: tuple[_Shape, ...]


def steps_of(sizes: Sequence[int], scopes: Sequence[_Axes], place: Sequence[int]) -> Steps:
    """The steps in a given order.

    Args:
        sizes: number of choices of every decision.
        scopes: of the tables, each in the order of elimination.
        place: by decision, its turn.
    """
    known = list(scopes)
    waiting: dict[int, list[int]] = {}
    for table, scope in enumerate(scopes):
        waiting.setdefault(scope[0], []).append(table)
    steps = []
    for number in sorted({number for scope in scopes for number in scope}, key=place.__getitem__):
        tables = tuple(waiting[number])
        here = [known[table] for table in tables]
        scope = tuple(sorted({other for held in here for other in held}, key=place.__getitem__))
        steps.append(_step(sizes, scope, tables, here))
        if scope[1:]:
            waiting.setdefault(scope[1], []).append(len(known))
        known.append(scope[1:])
    shapes = [tuple(sizes[number] for number in scope) for scope in known]
    return Steps(
        decisions=len(sizes),
        given=tuple(shapes[: len(scopes)]),
        steps=tuple(steps),
        left=tuple(shapes[len(scopes) :]),
    )


def _step(sizes: Sequence[int], scope: _Axes, tables: tuple[int, ...], here: list[_Axes]) -> Step:
    scopes = [frozenset(held) for held in here]
    sums = _summed(sizes, scopes)
    return Step(
        number=scope[0],
        tables=tables,
        shapes=tuple(tuple(sizes[n] if n in held else 1 for n in scope) for held in scopes),
        sums=sums,
        held=tuple(held[1:] for held in here),
    )


def _summed(sizes: Sequence[int], scopes: list[frozenset[int]]) -> tuple[tuple[int, int], ...]:
    """Which tables to add up, the smallest sum first; appends the scopes of the sums."""
    waiting, found = list(range(len(scopes))), []
    while len(waiting) > 1:
        pairs = [(one, other) for n, one in enumerate(waiting) for other in waiting[n + 1 :]]
        wide = [scopes[one] | scopes[other] for one, other in pairs]
        entries = [math.prod(sizes[number] for number in scope) for scope in wide]
        best = entries.index(min(entries))
        waiting = [table for table in waiting if table not in pairs[best]] + [len(scopes)]
        scopes.append(wide[best])
        found.append(pairs[best])
    return tuple(found)


class Workspace:
    """Memory for the steps at some number of prices.

    Attributes:
        costs: of all entries of the given tables, one table behind the other; shape (entries,
            prices). Filled from outside before ``run``.
    """

    def __init__(self, steps: Steps, prices: int) -> None:
        self._steps = steps
        self._prices = prices
        begins = [0]
        for shape in steps.given:
            begins.append(begins[-1] + math.prod(shape))
        self.costs = np.empty((begins[-1], prices))
        self._tables = [
            self.costs[begin:end].reshape(*shape, prices)
            for begin, end, shape in zip(begins, begins[1:], steps.given, strict=False)
        ]
        self._tables += [np.empty((*shape, prices)) for shape in steps.left]
        scratch = [sum(map(math.prod, s.shapes[len(s.tables) :])) for s in steps.steps]
        self._scratch = np.empty(prices * max(scratch, default=0))
        self._moves = [self._moved(step) for step in steps.steps]

    def run(self) -> _Floats:
        """The least cost of all assignments, by price."""
        value = np.zeros(self._prices)
        left = self._tables[len(self._steps.given) :]
        for (sums, total), least in zip(self._moves, left, strict=True):
            for one, other, out in sums:
                np.add(one, other, out)
            np.minimum.reduce(total, 0, out=least)
            if least.ndim == 1:
                value += least
        return value

    def choices(self, price: int) -> tuple[int, ...]:
        """Of the last run, the choices that have the least cost at one of its prices.

        Of equals, always the same.
        """
        choices = [0] * self._steps.decisions
        for step in reversed(self._steps.steps):
            rows = [
                self._tables[table][(slice(None), *(choices[n] for n in held), price)]
                for table, held in zip(step.tables, step.held, strict=True)
            ]
            for one, other in step.sums:
                rows.append(rows[one] + rows[other])
            choices[step.number] = int(rows[-1].argmin())
        return tuple(choices)

    def _moved(self, step: Step) -> tuple[list[tuple[_Floats, _Floats, _Floats]], _Floats]:
        """The additions of a step as (one, other, sum), and the table that it minimises."""
        shapes = [(*shape, self._prices) for shape in step.shapes]
        parts = [
            self._tables[table].reshape(shape)
            for table, shape in zip(step.tables, shapes, strict=False)
        ]
        begin, moves = 0, []
        for (one, other), shape in zip(step.sums, shapes[len(parts) :], strict=True):
            end = begin + math.prod(shape)
            parts.append(self._scratch[begin:end].reshape(shape))
            moves.append((parts[one], parts[other], parts[-1]))
            begin = end
        return moves, parts[-1]
