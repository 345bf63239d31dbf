"""The steps that eliminate a region's decisions, and memory in which they run for several prices.

Bucket elimination (``autoplan.search.elimination``) with everything that does not depend on prices
settled once. Axes of all tables go in the order of elimination, so that each step minimises over
its first axis, and what it leaves fits into the next table without turning; prices have one more
axis, the last. Tables of a step are added up in the order that keeps sums small.

In memory axes lie in another order: a sum of two tables repeats each along the axes that it lacks,
and loops are long if those that the larger one has alone lie together, and last.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float64]
_ENTRIES_KEPT = 1 << 16
"""Entries of tables, over all prices, for which memory is kept."""

_LONG = 1 << 11
"""Entries of a sum for which tables are copied, so that they lie as the sum does."""

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
        layout: the order of the axes of all sums in memory.
        turned: tables that lie in another order, and are copied first.
    """

    number: int
    tables: tuple[int, ...]
    shapes: tuple[_Shape, ...]
    sums: tuple[tuple[int, int], ...]
    held: tuple[_Axes, ...]
    layout: _Axes
    turned: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """All steps.

    Attributes:
        decisions: how many there are.
        given: shapes of the tables that are given.
        left: shapes of the tables that steps leave; they are numbered after those given.
        layouts: of all tables, the order of their axes in memory.
    """

    decisions: int
    given: tuple[_Shape, ...]
    steps: tuple[Step, ...]
    left: tuple[_Shape, ...]
    layouts: tuple[_Axes, ...]

    @property
    def entries(self) -> int:
        """Entries of the tables of all steps."""
        return sum(math.prod(step.shapes[-1]) for step in self.steps)


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
    steps: list[Step] = []
    layouts: list[_Axes] = [()] * len(scopes)
    for number in sorted({number for scope in scopes for number in scope}, key=place.__getitem__):
        tables = tuple(waiting[number])
        here = [known[table] for table in tables]
        scope = tuple(sorted({other for held in here for other in held}, key=place.__getitem__))
        step = _step(sizes, scope, tables, here, [layouts[table] for table in tables])
        for table in tables:
            if table < len(scopes):
                layouts[table] = _within(step.layout, scope, known[table])
        steps.append(step)
        layouts.append(tuple(axis - 1 for axis in step.layout[1:]))
        if scope[1:]:
            waiting.setdefault(scope[1], []).append(len(known))
        known.append(scope[1:])
    shapes = [tuple(sizes[number] for number in scope) for scope in known]
    return Steps(
        decisions=len(sizes),
        given=tuple(shapes[: len(scopes)]),
        steps=tuple(steps),
        left=tuple(shapes[len(scopes) :]),
        layouts=tuple(layouts),
    )


def _step(
    sizes: Sequence[int],
    scope: _Axes,
    tables: tuple[int, ...],
    here: list[_Axes],
    layouts: list[_Axes],
) -> Step:
    scopes = [frozenset(held) for held in here]
    sums = _summed(sizes, scopes)
    both = [scopes[table] for table in sums[-1]] if sums else [scopes[0]]
    layout = _layout(sizes, scope, both)
    is_long = math.prod(sizes[number] for number in scope) >= _LONG
    return Step(
        number=scope[0],
        tables=tables,
        shapes=tuple(tuple(sizes[n] if n in held else 1 for n in scope) for held in scopes),
        sums=sums,
        held=tuple(held[1:] for held in here),
        layout=layout,
        turned=tuple(
            number
            for number, (held, lies) in enumerate(zip(here, layouts, strict=True))
            if is_long and lies and lies != _within(layout, scope, held)
        ),
    )


def _layout(sizes: Sequence[int], scope: _Axes, tables: list[frozenset[int]]) -> _Axes:
    """The order in memory of the axes of a sum of two tables, or of one: the first, those of both,
    those of the smaller one alone, and those of the larger one alone."""

    def turn(axis: int) -> int:
        holders = [number for number, held in enumerate(tables) if scope[axis] in held]
        return 0 if len(holders) == len(tables) else 1 + holders[0]

    tables = sorted(tables, key=lambda held: math.prod(sizes[number] for number in held))
    return (0, *sorted(range(1, len(scope)), key=turn))


def _within(layout: _Axes, scope: _Axes, held: _Axes) -> _Axes:
    """The order of the axes of a table with some of the decisions of a sum."""
    return tuple(held.index(scope[axis]) for axis in layout if scope[axis] in held)


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


_Moves = tuple[list[tuple[_Floats, _Floats]], list[tuple[_Floats, _Floats, _Floats]], _Floats]
"""Of a step, tables and their copies; additions as (one, other, sum); the table to minimise."""


class Workspaces:
    """Memory for the steps at any number of prices; what it held is lost when it is asked again.

    To set it up takes longer than to go through small tables, so that it is kept for these.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._entries = steps.entries
        self._kept: dict[int, Workspace] = {}

    def of(self, prices: int) -> Workspace:
        """Memory for as many prices, or some more."""
        padded = 1 << (prices - 1).bit_length()
        if prices > 1 and padded * self._entries > _ENTRIES_KEPT:
            return Workspace(self._steps, prices)
        if padded not in self._kept:
            self._kept[padded] = Workspace(self._steps, padded)
        return self._kept[padded]


class Workspace:
    """Memory for the steps at some number of prices.

    Attributes:
        prices: how many.
        costs: of all entries of the given tables, one table behind the other; shape (entries,
            prices). Filled from outside before ``run``.
    """

    def __init__(self, steps: Steps, prices: int) -> None:
        self._steps = steps
        self.prices = prices
        begins = [0]
        for shape in steps.given:
            begins.append(begins[-1] + math.prod(shape))
        self.costs = np.empty((begins[-1], prices))
        memory = [self.costs[begin:end] for begin, end in itertools.pairwise(begins)]
        memory += [np.empty(prices * math.prod(shape)) for shape in steps.left]
        self._tables = [
            self._laid_out(*each)
            for each in zip(memory, (*steps.given, *steps.left), steps.layouts, strict=True)
        ]
        scratch = [sum(map(math.prod, s.shapes[len(s.tables) :])) for s in steps.steps]
        self._scratch = np.empty(prices * max(scratch, default=0))
        self._moves = [self._moved(step) for step in steps.steps]

    def run(self) -> _Floats:
        """The least cost of all assignments, by price."""
        value = np.zeros(self.prices)
        left = self._tables[len(self._steps.given) :]
        for (copies, sums, total), least in zip(self._moves, left, strict=True):
            for table, copy in copies:
                np.copyto(copy, table)
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

    def _laid_out(self, memory: _Floats, shape: _Shape, layout: _Axes) -> _Floats:
        """Memory as a table whose axes lie there in another order; prices come last."""
        places = sorted(range(len(layout)), key=layout.__getitem__)
        lies = memory.reshape(*(shape[axis] for axis in layout), self.prices)
        return lies.transpose(*places, len(shape))

    def _moved(self, step: Step) -> _Moves:
        parts = [
            self._tables[table].reshape(*shape, self.prices)
            for table, shape in zip(step.tables, step.shapes, strict=False)
        ]
        copies = []
        for number in step.turned:
            shape = step.shapes[number]
            memory = np.empty(self.prices * math.prod(shape))
            copies.append((parts[number], self._laid_out(memory, shape, step.layout)))
            parts[number] = copies[-1][1]
        begin, sums = 0, []
        for (one, other), shape in zip(step.sums, step.shapes[len(parts) :], strict=True):
            end = begin + self.prices * math.prod(shape)
            parts.append(self._laid_out(self._scratch[begin:end], shape, step.layout))
            sums.append((parts[one], parts[other], parts[-1]))
            begin = end
        return copies, sums, parts[-1]
