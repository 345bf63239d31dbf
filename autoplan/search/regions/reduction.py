"""Ways that are never better, whatever the prices, are given up once.

For every combination of the other decisions that share a table with it, some choices of a decision
take no less of any amount than another one: at no prices are they needed. What is left are few
(Pareto-optimal) ones, mostly one or two. A decision and its tables so become one table with an axis
for these; as the decision is all that is left of those packed with it, whole chains of operators
end up as one decision. Where one choice is left for every combination, the decision goes altogether
and *follows* from the others. Multi-objective bucket elimination: E. Rollon and J. Larrosa, Journal
of Heuristics 12, 2006, as far as it makes tables smaller. Choices that no combination needs are
given up everywhere.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoplan.search.elimination import Scope
from autoplan.search.regions.dominance import needed
from autoplan.search.regions.terms import AMOUNTS, PRICED, Amounts, Mask, Terms

_QUICK = 0, 1 << 10
_THOROUGH = 1 << 14, 1 << 16
"""Combinations of a decision and its neighbours that are worth looking at, to give up choices
everywhere, and to pack it."""

_STEP_ENTRIES = 500
"""As many entries of a table take as long as a step itself when prices come."""


@dataclass(frozen=True, slots=True)
class Follower:
    """Decisions whose choices follow: by row of ``choices``, for all combinations of ``scope``."""

    numbers: Scope
    scope: Scope
    choices: npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Reduction:
    """Terms with fewer and smaller decisions; those that are gone have one choice."""

    terms: Terms
    followers: tuple[Follower, ...]

    def complete(self, choices: Sequence[int]) -> tuple[int, ...]:
        """The choices of all decisions as they were, given those that are left."""
        found = list(choices)
        for follower in reversed(self.followers):
            at = tuple(found[number] for number in follower.scope)
            values = follower.choices[(slice(None), *at)].tolist()
            for number, choice in zip(follower.numbers, values, strict=True):
                found[number] = choice
        return tuple(found)


def reduced(terms: Terms, kept: Collection[int], *, thoroughly: bool = False) -> Reduction:
    """Gives up what no prices need, but for choices of the decisions ``kept``.

    Args:
        thoroughly: for terms that many prices come for.
    """
    reducer = _Reducer(terms, kept)
    return reducer.run(*(_THOROUGH if thoroughly else _QUICK))


@dataclass(frozen=True, slots=True)
class _Table:
    """Amounts over a scope, of which those that are nowhere are left out.

    Attributes:
        layers: which of ``AMOUNTS``.
        amounts: of shape (layers, choices of each decision).
        barred: combinations that cannot be, if any.
    """

    layers: tuple[int, ...]
    amounts: Amounts
    barred: Mask | None

    def turned(self, axes: Sequence[int], shape: Sequence[int]) -> _Table:
        """With axes in another order, and reshaped."""
        return _Table(
            self.layers,
            self.amounts.transpose(0, *(axis + 1 for axis in axes)).reshape(-1, *shape),
            None if self.barred is None else self.barred.transpose(axes).reshape(shape),
        )


def _sum(tables: Sequence[_Table], shape: Sequence[int]) -> _Table:
    """Tables that fit a shape, added up."""
    layers = tuple(sorted({layer for table in tables for layer in table.layers}))
    amounts, barred = np.zeros((len(layers), *shape)), None
    for table in tables:
        if table.layers == layers:
            amounts += table.amounts
        else:
            amounts[[layers.index(layer) for layer in table.layers]] += table.amounts
        if table.barred is not None:
            barred = np.zeros(shape, dtype=bool) if barred is None else barred
            barred |= table.barred
    return _Table(layers, amounts, barred)


@dataclass(frozen=True, slots=True)
class _Bucket:
    """All tables of a decision as one: over it, what is packed with it, and the others.

    Attributes:
        group: the decision, then those packed that depend on it.
        table: of shape (choices of the group, combinations of the others).
    """

    group: Scope
    rest: Scope
    table: _Table

    def needed(self) -> Mask:
        """Which choices of the group some prices may need, for each combination of the others."""
        shape = self.table.amounts.shape[1:]
        priced = [layer for layer in self.table.layers if layer < PRICED]
        barred = np.zeros(shape, dtype=bool) if self.table.barred is None else self.table.barred
        amounts = self.table.amounts[: len(priced)] if priced else np.zeros((1, *shape))
        return needed(amounts, barred)


class _Reducer:
    def __init__(self, terms: Terms, kept: Collection[int]) -> None:
        self.sizes = list(terms.sizes)
        self.kept = kept
        self.packed: set[int] = set()
        self.gone: set[int] = set()
        self.tables: dict[Scope, _Table] = {}
        self.near: list[set[Scope]] = [set() for _ in terms.sizes]
        for scope, table in terms.tables.items():
            layers = np.flatnonzero(table.reshape(len(table), -1).any(1))
            if len(layers) or scope in terms.blocked:
                self._put(
                    scope, _Table(tuple(layers.tolist()), table[layers], terms.blocked.get(scope))
                )
        self.followers: list[Follower] = []

    def run(self, most_shrunk: int, most_packed: int) -> Reduction:
        open_ = {n for n, size in enumerate(self.sizes) if size > 1 and n not in self.kept}
        self._visit(open_, self._shrink, most_shrunk)
        self._visit(open_, self._pack, most_packed)
        terms = Terms(tuple(self.sizes))
        for scope, table in self.tables.items():
            terms.tables[scope] = np.zeros((len(AMOUNTS), *table.amounts.shape[1:]))
            terms.tables[scope][list(table.layers)] = table.amounts
            if table.barred is not None:
                terms.block(scope, table.barred)
        return Reduction(terms, tuple(self.followers))

    def _visit(
        self, open_: set[int], change: Callable[[_Bucket, Mask], bool], most_entries: int
    ) -> None:
        """Changes decisions until none does, those first that have the smallest buckets."""
        waiting = [(self._bucket_entries(number), number) for number in open_ - self.gone]
        heapq.heapify(waiting)
        while waiting:
            known, number = heapq.heappop(waiting)
            if number in self.gone or known != self._bucket_entries(number):
                continue
            if known > most_entries:
                break
            bucket = self._bucket(number)
            if change(bucket, bucket.needed()):
                for other in open_.difference(self.gone).intersection(bucket.rest):
                    heapq.heappush(waiting, (self._bucket_entries(other), other))

    def _around(self, number: int) -> tuple[Scope, Scope]:
        """A decision and what is packed with it, and the others that share its tables."""
        around = sorted({number}.union(*self.near[number]))
        group = (number, *(n for n in around if n in self.packed))
        return group, tuple(n for n in around if n not in group)

    def _entries(self, scope: Iterable[int]) -> int:
        return math.prod(self.sizes[number] for number in scope)

    def _bucket_entries(self, number: int) -> int:
        return self._entries({number}.union(*self.near[number]))

    def _put(self, scope: Scope, table: _Table) -> None:
        if scope in self.tables:
            table = _sum([self.tables[scope], table], table.amounts.shape[1:])
        self.tables[scope] = table
        for number in scope:
            self.near[number].add(scope)

    def _bucket(self, number: int) -> _Bucket:
        group, rest = self._around(number)
        around = (*group, *rest)
        shape = [self.sizes[other] for other in around]
        parts = []
        for scope in sorted(self.near[number]):
            turned = [scope.index(other) for other in around if other in scope]
            fitted = [size if n in scope else 1 for n, size in zip(around, shape, strict=True)]
            parts.append(self.tables[scope].turned(turned, fitted))
        flat = self._entries(group), self._entries(rest)
        return _Bucket(group, rest, _sum(parts, shape).turned(range(len(shape)), flat))

    def _pays(self, bucket: _Bucket, width: int) -> bool:
        """Whether one table with so many choices takes less time than those there are."""
        if width == 1:
            return True
        number, *packed = bucket.group
        steps = [(number, *bucket.rest), *(scope for n in packed for scope in self.near[n])]
        now = sum(self._entries(scope) + _STEP_ENTRIES for scope in steps)
        return width * self._entries(bucket.rest) + _STEP_ENTRIES < now

    def _pack(self, bucket: _Bucket, is_needed: Mask) -> bool:
        """One table instead of a bucket, with what is needed for every combination, if it pays."""
        number, *others = bucket.group
        counts = is_needed.sum(0)
        width = int(counts.max())
        if not self._pays(bucket, width):
            return self._shrink(bucket, is_needed)
        order = np.argsort(~is_needed, axis=0, kind="stable")[:width]
        at = np.where(np.arange(width)[:, None] < counts, order, order[0])
        chosen = np.array(np.unravel_index(at, [self.sizes[n] for n in bucket.group]))
        for known in tuple(self.near[number]):
            del self.tables[known]
            for other in known:
                self.near[other].discard(known)
        self.gone.add(number)
        self.packed.difference_update(others)
        for other in others:
            self.sizes[other] = 1
        self.sizes[number] = width
        scope = bucket.rest
        if width > 1:
            self.packed.add(number)
            scope = number, *scope
        shape = [self.sizes[n] for n in scope]
        self.followers.append(
            Follower(bucket.group, scope, chosen.reshape(len(bucket.group), *shape))
        )
        table, barred = bucket.table, bucket.table.barred
        combination = np.arange(len(counts))
        left = _Table(
            table.layers,
            table.amounts[:, at, combination].reshape(-1, *shape),
            None if barred is None else barred[at, combination].reshape(shape),
        )
        axes = sorted(range(len(scope)), key=scope.__getitem__)
        self._put(
            tuple(scope[axis] for axis in axes), left.turned(axes, [shape[axis] for axis in axes])
        )
        return True

    def _shrink(self, bucket: _Bucket, is_needed: Mask) -> bool:
        """Gives up the choices of a decision that no combination needs, if there are some."""
        number = bucket.group[0]
        is_used = is_needed.reshape(self.sizes[number], -1).any(1)
        if is_used.all():
            return False
        left = np.flatnonzero(is_used)
        for scope in self.near[number]:
            table, axis = self.tables[scope], scope.index(number)
            self.tables[scope] = _Table(
                table.layers,
                table.amounts.take(left, axis + 1),
                None if table.barred is None else table.barred.take(left, axis),
            )
        self.sizes[number] = len(left)
        self.followers.append(Follower((number,), (number,), left[None]))
        return True
