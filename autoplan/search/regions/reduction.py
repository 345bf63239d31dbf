"""Decisions that are clear whatever the prices, taken once.

If, for every combination of the other decisions that share a table with it, one choice of a
decision takes no more of any amount than each other choice, then that choice is best at all prices.
The decision then goes (it *follows* from the others), and its tables leave one table of amounts
behind. Placements of views are mostly clear so, which halves what must be decided at each price.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoplan.search.elimination import Scope
from autoplan.search.regions.terms import AMOUNTS, PRICED, Amounts, Mask, Terms

_LARGEST = 1 << 12
"""Combinations of a decision and its neighbours that are worth comparing."""


@dataclass(frozen=True, slots=True)
class Follower:
    """A decision that follows from others: its choice for all combinations of ``scope``."""

    number: int
    scope: Scope
    choices: npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Reduction:
    """Terms without the followers, which stay as decisions of one choice."""

    terms: Terms
    followers: tuple[Follower, ...]

    def complete(self, choices: Sequence[int]) -> tuple[int, ...]:
        """The choices of all decisions, given those of all but the followers."""
        found = list(choices)
        for follower in reversed(self.followers):
            at = tuple(found[number] for number in follower.scope)
            found[follower.number] = int(follower.choices[at])
        return tuple(found)


def reduced(terms: Terms, kept: Collection[int]) -> Reduction:
    """Takes all decisions out that follow, but for those ``kept``."""
    return _Reducer(terms, kept).run()


class _Reducer:
    def __init__(self, terms: Terms, kept: Collection[int]) -> None:
        self.sizes = terms.sizes
        self.kept = kept
        self.tables: dict[Scope, tuple[Amounts, Mask]] = {}
        self.near: list[set[Scope]] = [set() for _ in terms.sizes]
        for scope, table in terms.tables.items():
            barred = terms.blocked.get(scope)
            if barred is not None or table.any():
                none = np.zeros(table.shape[1:], dtype=bool)
                self._put(scope, table, none if barred is None else barred)
        self.followers: list[Follower] = []

    def run(self) -> Reduction:
        gone: set[int] = set()
        waiting = [(self._entries(number), number) for number in self._open()]
        heapq.heapify(waiting)
        while waiting:
            entries, number = heapq.heappop(waiting)
            if number in gone or entries != self._entries(number) or entries > _LARGEST:
                continue
            around = self._around(number)
            if self._follow(number, around):
                gone.add(number)
                for other in around:
                    if other != number and other not in self.kept:
                        heapq.heappush(waiting, (self._entries(other), other))
        sizes = tuple(1 if n in gone else size for n, size in enumerate(self.sizes))
        terms = Terms(sizes)
        for scope, (table, barred) in self.tables.items():
            terms.tables[scope] = table
            terms.block(scope, barred)
        return Reduction(terms, tuple(self.followers))

    def _open(self) -> Iterator[int]:
        return (
            number for number, size in enumerate(self.sizes) if size > 1 and number not in self.kept
        )

    def _around(self, number: int) -> Scope:
        return tuple(sorted({number}.union(*self.near[number])))

    def _entries(self, number: int) -> int:
        return math.prod(self.sizes[other] for other in self._around(number))

    def _put(self, scope: Scope, table: Amounts, barred: Mask) -> None:
        if scope in self.tables:
            before, bars = self.tables[scope]
            table, barred = table + before, barred | bars
        self.tables[scope] = table, barred
        for number in scope:
            self.near[number].add(scope)

    def _follow(self, number: int, around: Scope) -> bool:
        """Takes a decision out if one choice is best in every combination of its neighbours."""
        shape = [self.sizes[other] for other in around]
        total, bars = np.zeros((len(AMOUNTS), *shape)), np.zeros(shape, dtype=bool)
        for scope in self.near[number]:
            table, barred = self.tables[scope]
            fitted = [self.sizes[n] if n in scope else 1 for n in around]
            total += table.reshape(len(AMOUNTS), *fitted)
            bars |= barred.reshape(fitted)
        axis = around.index(number)
        priced = np.where(bars, math.inf, total[:PRICED])
        is_best = (priced <= priced.min(axis + 1, keepdims=True)).all(0)
        if not is_best.any(axis).all():
            return False
        choices = is_best.argmax(axis)
        at = np.expand_dims(choices, axis)
        rest = (*around[:axis], *around[axis + 1 :])
        for scope in tuple(self.near[number]):
            del self.tables[scope]
            for other in scope:
                self.near[other].discard(scope)
        left = np.take_along_axis(total, np.expand_dims(at, 0), axis + 1).squeeze(axis + 1)
        self._put(rest, left, np.take_along_axis(bars, at, axis).squeeze(axis))
        self.followers.append(Follower(number, rest, choices))
        return True
