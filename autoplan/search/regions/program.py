"""The cheapest assignment of a region's decisions at some prices, again and again.

Amounts of all combinations are one matrix, so that a product turns any number of prices into the
costs of all tables; amounts that are nowhere are left out. The steps that eliminate decisions are
settled once (``steps``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autoplan.errors import PlanError
from autoplan.search.elimination import LARGEST_TABLE, Scope, elimination_order
from autoplan.search.regions.steps import Steps, Workspace, Workspaces, steps_of
from autoplan.search.regions.terms import AMOUNTS, PRICED, Amounts, Terms

_Axes = tuple[int, ...]
_ENTRIES_AT_ONCE = 1 << 18
"""Costs that are worth having in memory at once, over all prices."""

_FEWEST_AT_ONCE = 16
"""Fewer prices are looked at one by one: they are the last axis, over which loops run."""

_PRODUCTS_AT_ONCE = 1 << 17
"""Half of what OpenBLAS shares out among threads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Structure:
    """What does not depend on amounts.

    Attributes:
        axes: of each table, as they lie in memory.
        offsets: where each table begins among the flat costs.
        strides: by table and decision, how far one choice lies from the next.
        spaces: memory for least values alone, of which no choices are asked.
    """

    axes: tuple[_Axes, ...]
    offsets: npt.NDArray[np.intp]
    strides: npt.NDArray[np.intp]
    steps: Steps
    spaces: Workspaces


Structures = dict[tuple[tuple[int, ...], tuple[Scope, ...]], Structure]
"""By numbers of choices and scopes of tables."""


class Program:
    """All tables of a region, ready to be priced.

    Args:
        terms: decisions of which some may have one choice.
        known: structures of other programs; that of this one is added.

    Raises:
        PlanError: the decisions hang together too closely.
    """

    def __init__(self, terms: Terms, name: str, known: Structures | None = None) -> None:
        one = {number: 0 for scope in terms.tables for number in scope if terms.sizes[number] == 1}
        tables = _merged(terms.restricted(one) if one else terms)
        self._fixed, self._blocked = tables.pop((), (np.zeros(len(AMOUNTS)), np.zeros(())))
        known, key = {} if known is None else known, (terms.sizes, tuple(tables))
        if key not in known:
            known[key] = _structure(*key, name)
        self._sizes, self._structure = terms.sizes, known[key]
        self._steps = known[key].steps
        self._layers, self._matrix, blocked = _flattened(tables, known[key].axes)
        self._priced = self._layers[self._layers < PRICED]
        self._impossible = np.flatnonzero(np.isinf(blocked))

    @cached_property
    def _single(self) -> Workspace:
        return Workspace(self._steps, 1)

    @property
    def largest_table(self) -> int:
        """Entries of the largest table of any step."""
        return max((math.prod(step.shapes[-1]) for step in self._steps.steps), default=1)

    @cached_property
    def entries(self) -> int:
        """Entries of the tables of all steps."""
        return self._steps.entries

    def least(self, prices: Amounts, barred: npt.NDArray[np.intp] | None = None) -> float:
        """The least cost of all assignments.

        Args:
            prices: of each of ``AMOUNTS`` that has one.
            barred: entries of tables (``entries_of``) that no assignment may have.
        """
        return float(self._run(self._single, prices[None], barred)[0])

    def choices(self) -> tuple[int, ...]:
        """The choices that had the least cost when ``least`` was last asked."""
        return self._single.choices(0)

    def least_values(self, prices: Amounts) -> npt.NDArray[np.float64]:
        """The least cost of all assignments at several prices.

        Args:
            prices: of shape (prices, amounts that have one).
        """
        at_once = _ENTRIES_AT_ONCE // max(1, self.largest_table)
        at_once = at_once if at_once >= _FEWEST_AT_ONCE else 1
        values = np.empty(len(prices))
        for first in range(0, len(prices), at_once):
            some = prices[first : first + at_once]
            space = self._structure.spaces.of(len(some))
            filled = some[np.minimum(np.arange(space.prices), len(some) - 1)]
            values[first : first + at_once] = self._run(space, filled)[: len(some)]
        return values

    def entries_of(self, number: int) -> npt.NDArray[np.intp]:
        """Entries of one table, by the choice of a decision; shape (choices, any)."""
        all_axes = self._structure.axes
        sizes = [
            (math.prod(self._sizes[other] for other in axes), table, axes.index(number))
            for table, axes in enumerate(all_axes)
            if number in axes
        ]
        count, table, axis = min(sizes)
        shape = [self._sizes[other] for other in all_axes[table]]
        entries = self._structure.offsets[table] + np.arange(count).reshape(shape)
        return np.moveaxis(entries, axis, 0).reshape(shape[axis], -1)

    def _run(
        self,
        space: Workspace,
        prices: Amounts,
        barred: npt.NDArray[np.intp] | None = None,
    ) -> npt.NDArray[np.float64]:
        _multiply(self._matrix[: len(self._priced)], prices[:, self._priced], space.costs)
        space.costs[self._impossible] = math.inf
        if barred is not None:
            space.costs[barred] = math.inf
        return space.run() + prices @ self._fixed[:PRICED] + self._blocked

    def amounts(self, choices: Sequence[int]) -> Amounts:
        """What an assignment takes of each of ``AMOUNTS``; infinite seconds if it cannot be."""
        structure = self._structure
        at = structure.offsets + structure.strides @ np.array(choices, dtype=np.intp)
        total = self._fixed + self._blocked
        total[self._layers] += self._matrix[:, at].sum(1)
        return total + math.inf if np.isin(at, self._impossible).any() else total


def _structure(sizes: tuple[int, ...], scopes: tuple[Scope, ...], name: str) -> Structure:
    order = elimination_order(sizes, scopes)
    if order is None:
        raise PlanError(
            f"the operators of {name} depend on each other in too many ways to be planned one "
            f"by one (more than {LARGEST_TABLE} combinations at once); mark smaller blocks"
        )
    place = [0] * len(sizes)
    for turn, number in enumerate(order):
        place[number] = turn
    axes = tuple(tuple(sorted(scope, key=place.__getitem__)) for scope in scopes)
    entries = [math.prod(sizes[number] for number in scope) for scope in scopes]
    steps = steps_of(sizes, axes, place)
    axes = tuple(
        tuple(scope[axis] for axis in layout)
        for scope, layout in zip(axes, steps.layouts, strict=False)
    )
    return Structure(
        axes=axes,
        offsets=np.cumsum([0, *entries], dtype=np.intp)[:-1],
        strides=_index_strides(sizes, axes),
        steps=steps,
        spaces=Workspaces(steps),
    )


def _index_strides(sizes: tuple[int, ...], axes: tuple[_Axes, ...]) -> npt.NDArray[np.intp]:
    strides = np.zeros((len(axes), len(sizes)), dtype=np.intp)
    for row, order in enumerate(axes):
        stride = 1
        for number in reversed(order):
            strides[row, number] = stride
            stride *= sizes[number]
    return strides


def _flattened(
    tables: Mapping[Scope, tuple[Amounts, Amounts]], axes: Sequence[_Axes]
) -> tuple[npt.NDArray[np.intp], Amounts, Amounts]:
    """The layers that are somewhere; they and the bars, one table behind the other."""
    is_there = np.zeros(len(AMOUNTS), dtype=bool)
    for table, _ in tables.values():
        is_there |= table.reshape(len(AMOUNTS), -1).any(1)
    layers = np.flatnonzero(is_there)
    entries = sum(barred.size for _, barred in tables.values())
    matrix, bars, begin = np.empty((len(layers), entries)), np.empty(entries), 0
    for order, (scope, (table, barred)) in zip(axes, tables.items(), strict=True):
        turned = [scope.index(number) for number in order]
        turned_bars = barred.transpose(turned)
        into = slice(begin, begin + barred.size)
        turned_table = table[layers].transpose(0, *(axis + 1 for axis in turned))
        matrix[:, into].reshape(turned_table.shape)[...] = turned_table
        bars[into].reshape(turned_bars.shape)[...] = turned_bars
        begin = into.stop
    return layers, matrix, bars


def _multiply(layers: Amounts, prices: Amounts, costs: Amounts) -> None:
    """Costs of all entries at all prices, in parts so small that no threads share them: with so few
    layers, waiting for each other takes them longer than the product."""
    if len(prices) == 1:
        np.einsum("ae,a->e", layers, prices[0], out=costs[:, 0])
        return
    at_once = max(1, _PRODUCTS_AT_ONCE // max(1, prices.size))
    for first in range(0, layers.shape[1], at_once):
        some = slice(first, first + at_once)
        np.dot(layers[:, some].T, prices.T, out=costs[some])


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
