"""The cheapest assignment of a region's decisions at some prices, again and again.

Bucket elimination (``elimination``) with everything that does not depend on prices done once: the
order, where each table goes, and how it lies beside the others. Axes of all tables go in the order
of elimination, so that each step minimises over its first axis (which is fast), and what it leaves
fits into the next table without turning. Where parts of tables lie in memory is settled once, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoplan.errors import PlanError
from autoplan.search.elimination import LARGEST_TABLE, Elimination, Scope
from autoplan.search.regions.terms import AMOUNTS, Amounts, Terms

_Floats = npt.NDArray[np.float64]
_Axes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Step:
    """A decision at its turn.

    Attributes:
        number: the decision.
        parts: tables that involve it and results of earlier steps, which are written in place.
        left: where the least costs over the other decisions are written.
        rest: the other decisions of the table, in the order of its axes.
    """

    number: int
    parts: tuple[_Floats, ...]
    left: _Floats
    rest: _Axes


@dataclass(frozen=True, slots=True)
class Priced:
    """The least cost at some prices, and what it takes to find the choices that have it."""

    value: float
    _steps: tuple[_Step, ...]
    _costs: list[_Floats]
    _count: int

    def choices(self) -> tuple[int, ...]:
        """The choices with the least cost; of equals, always the same."""
        choices = [0] * self._count
        for step, total in zip(reversed(self._steps), reversed(self._costs), strict=True):
            at = (slice(None), *(choices[number] for number in step.rest))
            choices[step.number] = int(total[at].argmin())
        return tuple(choices)


class Program:
    """All tables of a region, ready to be priced.

    Args:
        terms: decisions of which some may have one choice.

    Raises:
        PlanError: the decisions hang together too closely.
    """

    def __init__(self, terms: Terms, name: str) -> None:
        self._sizes = terms.sizes
        one = {number: 0 for scope in terms.tables for number in scope if terms.sizes[number] == 1}
        tables = _merged(terms.restricted(one) if one else terms)
        fixed = tables.pop((), (np.zeros(len(AMOUNTS)), np.zeros(())))
        self._fixed = fixed[0]
        elimination = Elimination(terms.sizes, tables)
        if not elimination.is_small:
            raise PlanError(
                f"the operators of {name} depend on each other in too many ways to be planned one "
                f"by one (more than {LARGEST_TABLE} combinations at once); mark smaller blocks"
            )
        involved = {number for scope in tables for number in scope}
        self._order = tuple(number for number in elimination.order if number in involved)
        self._place = {number: turn for turn, number in enumerate(self._order)}
        axes = [self._axes(scope) for scope in tables]
        self._matrix, self._blocked = self._flattened(tables, axes)
        self._flat = np.zeros(self._blocked.size)
        self._offsets = self._starts(axes)
        self._strides = self._index_strides(axes)
        self._steps = self._planned(axes)

    @property
    def largest_table(self) -> int:
        """Entries of the largest table of any step."""
        return max((self._sizes[s.number] * s.left.size for s in self._steps), default=1)

    def priced(self, prices: Amounts) -> Priced:
        """The least cost of all assignments.

        Args:
            prices: of each of ``AMOUNTS``.
        """
        np.dot(prices, self._matrix, out=self._flat)
        self._flat += self._blocked
        costs: list[_Floats] = []
        value = float(prices @ self._fixed)
        for step in self._steps:
            total = sum(step.parts[1:], step.parts[0])
            costs.append(total)
            np.minimum.reduce(total, 0, out=step.left)
            if not step.rest:
                value += float(step.left)
        return Priced(value, self._steps, costs, len(self._sizes))

    def amounts(self, choices: Sequence[int]) -> Amounts:
        """What an assignment takes of each of ``AMOUNTS``; infinite seconds if it cannot be."""
        at = self._offsets + self._strides @ np.array(choices, dtype=np.intp)
        total = self._fixed + self._matrix[:, at].sum(1)
        return total + math.inf if np.isinf(self._blocked[at]).any() else total

    def _axes(self, scope: Iterable[int]) -> _Axes:
        return tuple(sorted(scope, key=lambda number: self._place[number]))

    def _flattened(
        self, tables: Mapping[Scope, tuple[Amounts, Amounts]], axes: list[_Axes]
    ) -> tuple[Amounts, Amounts]:
        layers, blocked = [np.zeros((len(AMOUNTS), 0))], [np.zeros(0)]
        for order, (scope, (table, barred)) in zip(axes, tables.items(), strict=True):
            turned = [scope.index(number) for number in order]
            turned_table = table.transpose(0, *(axis + 1 for axis in turned))
            layers.append(turned_table.reshape(len(AMOUNTS), -1))
            blocked.append(barred.transpose(turned).reshape(-1))
        return np.concatenate(layers, 1), np.concatenate(blocked)

    def _entries(self, axes: _Axes) -> int:
        return math.prod(self._sizes[number] for number in axes)

    def _starts(self, axes: list[_Axes]) -> npt.NDArray[np.intp]:
        """Where each table begins among the flat costs."""
        return np.cumsum([0, *map(self._entries, axes)], dtype=np.intp)[:-1]

    def _index_strides(self, axes: list[_Axes]) -> npt.NDArray[np.intp]:
        """By table and decision, how far one choice lies from the next."""
        strides = np.zeros((len(axes), len(self._sizes)), dtype=np.intp)
        for row, order in enumerate(axes):
            stride = 1
            for number in reversed(order):
                strides[row, number] = stride
                stride *= self._sizes[number]
        return strides

    def _planned(self, axes: list[_Axes]) -> tuple[_Step, ...]:
        """Every decision with the tables that involve it when it goes."""
        waiting: list[list[tuple[_Axes, _Floats]]] = [[] for _ in self._order]
        for order, start in zip(axes, self._offsets, strict=True):
            part = self._flat[start : start + self._entries(order)]
            waiting[self._place[order[0]]].append((order, part))
        steps = []
        for turn, number in enumerate(self._order):
            involved = self._axes({number}.union(*(order for order, _ in waiting[turn])))
            rest = involved[1:]
            left = np.zeros([self._sizes[other] for other in rest])
            parts = sorted(waiting[turn], key=lambda part: part[1].size)
            steps.append(
                _Step(
                    number=number,
                    parts=tuple(
                        part.reshape([self._sizes[n] if n in order else 1 for n in involved])
                        for order, part in parts
                    ),
                    left=left,
                    rest=rest,
                )
            )
            if rest:
                waiting[self._place[rest[0]]].append((rest, left))
        return tuple(steps)


def _merged(terms: Terms) -> dict[Scope, tuple[Amounts, Amounts]]:
    """Layers and bars by scope, tables within others added to the smallest of them."""
    members: dict[Scope, list[Scope]] = {}
    masks: list[tuple[int, int, Scope]] = []
    for scope in sorted(terms.tables, key=lambda scope: (-len(scope), scope)):
        if scope not in terms.blocked and not terms.tables[scope].any():
            continue
        mask = sum(1 << number for number in scope)
        within = [(size, other) for held, size, other in masks if mask & held == mask]
        if within and scope:
            members[min(within)[1]].append(scope)
        else:
            members[scope] = [scope]
            masks.append((mask, math.prod(terms.sizes[number] for number in scope), scope))
    return {scope: _summed(terms, scope, parts) for scope, parts in members.items()}


def _summed(terms: Terms, scope: Scope, parts: list[Scope]) -> tuple[Amounts, Amounts]:
    layers, bars = terms.tables[scope], np.zeros([terms.sizes[number] for number in scope])
    layers = layers.copy() if len(parts) > 1 else layers
    for part in parts:
        shape = [terms.sizes[number] if number in part else 1 for number in scope]
        if part != scope:
            layers += terms.tables[part].reshape(len(AMOUNTS), *shape)
        if part in terms.blocked:
            bars += np.where(terms.blocked[part], math.inf, 0.0).reshape(shape)
    return layers, bars
