"""The cheapest assignment of a region's decisions at some prices, again and again.

Bucket elimination (``elimination``) with everything that does not depend on prices done once: the
order, where each table goes, and how it lies beside the others. Axes of all tables go in the order
of elimination, so that each step minimises over its first axis (which is fast), and what it leaves
fits into the next table without turning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoplan.errors import PlanError
from autoplan.search.elimination import LARGEST_TABLE, Elimination, Scope
from autoplan.search.regions.terms import AMOUNTS, Amounts, Terms

_Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Part:
    """One table or message in a step: where it comes from, and its shape among the axes."""

    start: int
    stop: int
    shape: _Shape


@dataclass(frozen=True, slots=True)
class _Step:
    """A decision at its turn.

    Attributes:
        number: the decision.
        tables: parts of the flat costs.
        messages: earlier steps (``start``) whose results come in.
        rest: the other decisions of the table, in the order of its axes.
    """

    number: int
    tables: tuple[_Part, ...]
    messages: tuple[_Part, ...]
    rest: tuple[int, ...]


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
        self._scopes = [self._axes(scope) for scope in tables]
        self._offsets: list[int] = []
        self._matrix, self._blocked = self._flattened(tables)
        self._steps = self._planned()

    @property
    def largest_table(self) -> int:
        """Entries of the largest table of any step."""
        return max(
            (math.prod(self._sizes[n] for n in (step.number, *step.rest)) for step in self._steps),
            default=1,
        )

    def least(self, prices: Amounts) -> tuple[int, ...]:
        """The choices with the least cost; of equals, always the same.

        Args:
            prices: of each of ``AMOUNTS``.
        """
        flat = prices @ self._matrix + self._blocked
        costs: list[npt.NDArray[np.float64]] = []
        found: list[npt.NDArray[np.float64]] = []
        for step in self._steps:
            parts = [flat[p.start : p.stop].reshape(p.shape) for p in step.tables]
            parts += [found[p.start].reshape(p.shape) for p in step.messages]
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            costs.append(total)
            found.append(np.minimum.reduce(total, 0))
        choices = [0] * len(self._sizes)
        for step, total in zip(reversed(self._steps), reversed(costs), strict=True):
            at = (slice(None), *(choices[number] for number in step.rest))
            choices[step.number] = int(total[at].argmin())
        return tuple(choices)

    def amounts(self, choices: Sequence[int]) -> Amounts:
        """What an assignment takes of each of ``AMOUNTS``; infinite seconds if it cannot be."""
        at = []
        for axes, offset in zip(self._scopes, self._offsets, strict=True):
            index = 0
            for number in axes:
                index = index * self._sizes[number] + choices[number]
            at.append(offset + index)
        total = self._fixed + self._matrix[:, at].sum(1)
        return total + math.inf if np.isinf(self._blocked[at]).any() else total

    def _axes(self, scope: Scope) -> tuple[int, ...]:
        return tuple(sorted(scope, key=lambda number: self._place[number]))

    def _flattened(
        self, tables: Mapping[Scope, tuple[Amounts, Amounts]]
    ) -> tuple[Amounts, Amounts]:
        layers, blocked, stop = [np.zeros((len(AMOUNTS), 0))], [np.zeros(0)], 0
        for axes, (scope, (table, barred)) in zip(self._scopes, tables.items(), strict=True):
            turned = [scope.index(number) for number in axes]
            self._offsets.append(stop)
            layers.append(
                table.transpose(0, *(axis + 1 for axis in turned)).reshape(len(AMOUNTS), -1)
            )
            blocked.append(barred.transpose(turned).reshape(-1))
            stop += blocked[-1].size
        return np.concatenate(layers, 1), np.concatenate(blocked)

    def _planned(self) -> tuple[_Step, ...]:
        """Every decision with the tables that involve it when it goes."""
        waiting: list[list[tuple[tuple[int, ...], int, int]]] = [[] for _ in self._order]
        came: list[list[tuple[tuple[int, ...], int]]] = [[] for _ in self._order]
        for axes, offset in zip(self._scopes, self._offsets, strict=True):
            entries = math.prod(self._sizes[number] for number in axes)
            waiting[self._place[axes[0]]].append((axes, offset, offset + entries))
        steps = []
        for turn, number in enumerate(self._order):
            involved = [axes for axes, *_ in waiting[turn]] + [axes for axes, _ in came[turn]]
            axes = self._axes(tuple({number}.union(*involved)))
            steps.append(
                _Step(
                    number=number,
                    tables=tuple(
                        _Part(start, stop, self._shape(part, axes))
                        for part, start, stop in waiting[turn]
                    ),
                    messages=tuple(
                        _Part(step, step, self._shape(part, axes)) for part, step in came[turn]
                    ),
                    rest=axes[1:],
                )
            )
            if axes[1:]:
                came[self._place[axes[1]]].append((axes[1:], turn))
        return tuple(steps)

    def _shape(self, part: tuple[int, ...], axes: tuple[int, ...]) -> _Shape:
        return tuple(self._sizes[number] if number in part else 1 for number in axes)


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
