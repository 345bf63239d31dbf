"""Which columns the blocks of one rank take, so that its memory is filled: whole blocks.

The relaxed problem (``relaxation``) has a price of a byte p. Beyond its cost a choice of whole
blocks costs the *excess* of its columns - by how much each, with its bytes at p, is dearer than its
group's base - and p for every byte that is left:

    cost = relaxed cost + sum of excess + p * (limit - bytes)

So a better choice than the best so far has few blocks off the bases, at columns of little excess.
Sets of such *odd* blocks are tried in the order of their excess; the rest has the bases, and in the
group that is split as many blocks the larger column as fit. Already without odd blocks the cost is
within one block's step of the relaxed one. The best set is found, to ``_CLOSE`` of the cost, unless
more than ``_MOST_TRIED`` would have to be tried.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from autoplan.search.pipeline.relaxation import Group, Relaxed, by_cap, relaxed

__all__ = ["Group", "Mix", "Relaxed", "fill", "relaxed"]

_CLOSE = 1e-5
_MOST_TRIED = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Mix:
    """A choice for all blocks of a rank.

    Attributes:
        counts: of each group, how many blocks have each column.
        cost_s: of all blocks.
        held_bytes: of all blocks.
        passing_bytes: the most of any column used.
    """

    counts: tuple[tuple[int, ...], ...]
    cost_s: float
    held_bytes: float
    passing_bytes: float

    @property
    def nbytes(self) -> float:
        return self.held_bytes + self.passing_bytes


def fill(groups: Sequence[Group], limit_bytes: float) -> Mix | None:
    """The least cost of whole blocks, or close to it.

    Args:
        groups: one or more.
        limit_bytes: for held and passing bytes together.

    Returns:
        None where the fewest bytes do not fit.
    """
    best: Mix | None = None
    tried = 0
    for bound_s, start in by_cap(groups, limit_bytes):
        if best is not None and bound_s >= best.cost_s * (1 - _CLOSE):
            break
        if best is not None and start.cost_s >= best.cost_s:
            continue
        search = _Odds(groups, start, limit_bytes, best, tried)
        search.run()
        best, tried = search.best, search.tried
    return best


@dataclass(frozen=True, slots=True)
class _Odd:
    """A column off its group's base, with the bytes that a block has more there."""

    excess_s: float
    group: int
    column: int
    more_bytes: float


class _Set(NamedTuple):
    """Odd blocks, by numbers of their odds in order, and the bytes left with all others on base."""

    excess_s: float
    odds: tuple[int, ...]
    left_bytes: float


class _Odds:
    """The search of one cap; ``best`` is of all caps so far."""

    def __init__(
        self,
        groups: Sequence[Group],
        start: Relaxed,
        limit_bytes: float,
        best: Mix | None,
        tried: int,
    ) -> None:
        self.best = best
        self.tried = tried
        self._groups = groups
        self._start = start
        self._limit_bytes = limit_bytes
        self._odds = _odds(start)
        self._excess_s = math.inf if best is None else best.cost_s - start.cost_s
        base = zip(groups, start.base, strict=True)
        held_bytes = sum(group.count * point.held_bytes for group, point in base)
        self._left_bytes = limit_bytes - (held_bytes + start.cap_bytes)

    def run(self) -> None:
        """Tries sets of odd blocks, those that cost least beyond the relaxed problem first.

        From a set come those with one odd block more of its last kind, and with that block of the
        next kind instead: every set once.
        """
        self._keep(_Set(0.0, (), self._left_bytes))
        waiting = [_Set(o.excess_s, (0,), self._left_bytes - o.more_bytes) for o in self._odds[:1]]
        while waiting and self.tried < _MOST_TRIED:
            taken = heapq.heappop(waiting)
            if taken.excess_s >= self._excess_s - _CLOSE * self._start.cost_s:
                return
            self.tried += 1
            number = taken.odds[-1]
            if self._has_room(taken):
                self._keep(taken)
                heapq.heappush(waiting, self._with(taken, number))
            if number + 1 < len(self._odds):
                heapq.heappush(waiting, self._with(self._without_last(taken), number + 1))

    def _with(self, taken: _Set, number: int) -> _Set:
        odd = self._odds[number]
        odds = (*taken.odds, number)
        return _Set(taken.excess_s + odd.excess_s, odds, taken.left_bytes - odd.more_bytes)

    def _without_last(self, taken: _Set) -> _Set:
        last = self._odds[taken.odds[-1]]
        odds = taken.odds[:-1]
        return _Set(taken.excess_s - last.excess_s, odds, taken.left_bytes + last.more_bytes)

    def _has_room(self, taken: _Set) -> bool:
        group = self._odds[taken.odds[-1]].group
        return self._used(taken, group) <= self._groups[group].count

    def _used(self, taken: _Set, group: int) -> int:
        return sum(self._odds[number].group == group for number in taken.odds)

    def _keep(self, taken: _Set) -> None:
        """Completes a set, and keeps the choice if it is the best that fits."""
        if taken.left_bytes < 0:
            return
        split, large, excess_s = self._start.split, 0, taken.excess_s
        if split is not None:
            room = self._groups[split.group].count - self._used(taken, split.group)
            step_bytes = split.large.held_bytes - split.small.held_bytes
            large = min(room, int(taken.left_bytes // step_bytes))
            excess_s += self._start.byte_price_s * (taken.left_bytes - large * step_bytes)
        if excess_s >= self._excess_s:
            return
        mix = _mixed(self._groups, self._counts(taken, large))
        if mix.nbytes <= self._limit_bytes:
            self.best, self._excess_s = mix, mix.cost_s - self._start.cost_s

    def _counts(self, taken: _Set, large: int) -> list[list[int]]:
        base, split = self._start.base, self._start.split
        counts = [[0] * len(group.cost_s) for group in self._groups]
        for group, point, of_group in zip(self._groups, base, counts, strict=True):
            of_group[point.column] = group.count
        for odd in map(self._odds.__getitem__, taken.odds):
            counts[odd.group][odd.column] += 1
            counts[odd.group][base[odd.group].column] -= 1
        if split is not None:
            counts[split.group][split.small.column] -= large
            counts[split.group][split.large.column] += large
        return counts


def _mixed(groups: Sequence[Group], counts: list[list[int]]) -> Mix:
    used = [
        (count, group.cost_s[column], group.held_bytes[column], group.passing_bytes[column])
        for group, of_group in zip(groups, counts, strict=True)
        for column, count in enumerate(of_group)
        if count
    ]
    return Mix(
        counts=tuple(map(tuple, counts)),
        cost_s=float(sum(count * cost_s for count, cost_s, _, _ in used)),
        held_bytes=float(sum(count * held for count, _, held, _ in used)),
        passing_bytes=float(max(passing for _, _, _, passing in used)),
    )


def _odds(start: Relaxed) -> list[_Odd]:
    """Least excess first; none where nothing is split, as then no choice is better."""
    if start.split is None:
        return []
    found = []
    for number, (points, base) in enumerate(zip(start.points, start.base, strict=True)):
        known = {base.column}
        if start.split.group == number:
            known.add(start.split.large.column)
        for point in points:
            if point.column not in known:
                more_bytes = point.held_bytes - base.held_bytes
                excess_s = point.cost_s - base.cost_s + start.byte_price_s * more_bytes
                found.append(_Odd(max(0.0, excess_s), number, point.column, more_bytes))
    return sorted(found, key=lambda odd: odd.excess_s)
