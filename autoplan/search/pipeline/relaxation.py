"""Blocks of a rank and the ways to run them, relaxed: fractions of blocks may differ.

Columns of a group are points (bytes held, seconds); what is passing counts once, for the largest
column that is used. For each *cap* on passing bytes the allowed columns share what is left of the
limit. The best fractions lie on the lower hulls of the groups: from the fewest bytes on, the steps
of all hulls are taken in the order of seconds saved per byte, until bytes run out. The rate of the
step at which they do is the price of a byte, and only there is a group split between two columns.
Caps whose bound at a price already known is no better are left out (any price gives a bound).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_NEVER = float("inf")
_ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Group:
    """Blocks of one kind on a rank, and the columns that each can have.

    Attributes:
        count: of blocks, one or more.
        cost_s, held_bytes, passing_bytes: of one block with each column, of shape (columns,). Held
            bytes add up over blocks; of passing bytes the largest counts.
    """

    count: int
    cost_s: Floats
    held_bytes: Floats
    passing_bytes: Floats


class Point(NamedTuple):
    """A column of a group."""

    held_bytes: float
    cost_s: float
    column: int


class Split(NamedTuple):
    """The group whose blocks are divided between two columns, by number."""

    group: int
    small: Point
    large: Point


@dataclass(frozen=True, kw_only=True, slots=True)
class Relaxed:
    """The best fractions under one cap.

    Attributes:
        cost_s: of all blocks.
        byte_price_s: seconds that one byte more would save; 0 where bytes are left.
        cap_bytes: columns with more passing bytes are not used.
        points: columns of each group under the cap, least bytes first, each one faster than those
            with fewer bytes.
        base: each group's column; where ``split`` the smaller of the two.
        split: None where every group has one column only.
    """

    cost_s: float
    byte_price_s: float
    cap_bytes: float
    points: tuple[tuple[Point, ...], ...]
    base: tuple[Point, ...]
    split: Split | None


def relaxed(groups: Sequence[Group], limit_bytes: float) -> Relaxed | None:
    """The least cost where fractions of blocks may have different columns: none of whole blocks is
    less. Columns that could lower it are those that menus answer to its ``byte_price_s``.

    Args:
        groups: one or more.
        limit_bytes: for held and passing bytes together.

    Returns:
        None where the fewest bytes do not fit.
    """
    best: Relaxed | None = None
    for bound_s, found in by_cap(groups, limit_bytes):
        if best is not None and bound_s >= best.cost_s:
            break
        if best is None or found.cost_s < best.cost_s:
            best = found
    return best


def by_cap(groups: Sequence[Group], limit_bytes: float) -> Iterator[tuple[float, Relaxed]]:
    """The relaxed problems of caps that fit, each with a bound of it and of all that come later."""
    caps = _Caps(groups)
    columns = [_sorted_columns(group) for group in groups]
    bounds = np.where(caps.least(0.0, 1.0) + caps.bytes <= limit_bytes, -_NEVER, _NEVER)
    number = int(np.flatnonzero(bounds < _NEVER)[-1]) if bounds.min() < _NEVER else 0
    while (bound_s := float(bounds[number])) < _NEVER:
        found = _under(groups, columns, float(caps.bytes[number]), limit_bytes)
        yield bound_s, found
        bounds[number] = _NEVER
        price_s = found.byte_price_s
        at_price = caps.least(1.0, price_s) - price_s * (limit_bytes - caps.bytes)
        np.maximum(bounds, at_price, out=bounds)
        number = int(bounds.argmin())


class _Caps:
    """All caps on passing bytes that make a difference."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups
        self._orders = [np.argsort(group.passing_bytes, kind="stable") for group in groups]
        least = max(float(group.passing_bytes.min()) for group in groups)
        every = np.unique(np.concatenate([group.passing_bytes for group in groups]))
        self.bytes = every[every >= least]

    def least(self, seconds: float, byte: float) -> Floats:
        """What all blocks cost at least under each cap, for so much a second and a byte."""
        total = np.zeros(len(self.bytes))
        for group, order in zip(self._groups, self._orders, strict=True):
            values = (seconds * group.cost_s + byte * group.held_bytes)[order]
            allowed = np.searchsorted(group.passing_bytes[order], self.bytes, side="right")
            total += group.count * np.minimum.accumulate(values)[allowed - 1]
        return total


def _under(
    groups: Sequence[Group],
    columns: Sequence[list[tuple[Point, float]]],
    cap_bytes: float,
    limit_bytes: float,
) -> Relaxed:
    """The relaxed problem under a cap with which the fewest bytes fit."""
    points = tuple(_points(of_group, cap_bytes) for of_group in columns)
    base = [of_group[0] for of_group in points]
    held = sum(group.count * point.held_bytes for group, point in zip(groups, base, strict=True))
    left = limit_bytes - (held + cap_bytes)
    steps = [
        (_rate(small, large), number, small, large)
        for number, of_group in enumerate(points)
        for small, large in _steps(of_group)
    ]
    cost_s = sum(group.count * point.cost_s for group, point in zip(groups, base, strict=True))
    price_s, split = 0.0, None
    for rate, number, small, large in sorted(steps, key=lambda step: -step[0]):
        count, more = groups[number].count, large.held_bytes - small.held_bytes
        if count * more > left - _ROUNDING * limit_bytes:
            cost_s -= rate * left
            price_s, split = rate, Split(number, small, large)
            break
        left -= count * more
        cost_s -= count * (small.cost_s - large.cost_s)
        base[number] = large
    return Relaxed(
        cost_s=cost_s,
        byte_price_s=price_s,
        cap_bytes=cap_bytes,
        points=points,
        base=tuple(base),
        split=split,
    )


def _sorted_columns(group: Group) -> list[tuple[Point, float]]:
    """Columns and their passing bytes, least held bytes first and then the fastest."""
    points = map(Point, group.held_bytes.tolist(), group.cost_s.tolist(), range(len(group.cost_s)))
    return sorted(zip(points, group.passing_bytes.tolist(), strict=True))


def _points(columns: list[tuple[Point, float]], cap_bytes: float) -> tuple[Point, ...]:
    """The columns under a cap of which no other has neither more bytes nor more seconds."""
    found: list[Point] = []
    fastest_s = _NEVER
    for point, passing_bytes in columns:
        if passing_bytes <= cap_bytes and point.cost_s < fastest_s:
            found.append(point)
            fastest_s = point.cost_s
    return tuple(found)


def _steps(points: Sequence[Point]) -> Iterator[tuple[Point, Point]]:
    """Neighbours on the lower hull."""
    hull: list[Point] = []
    for point in points:
        while len(hull) > 1 and _rate(hull[-2], hull[-1]) <= _rate(hull[-1], point):
            hull.pop()
        hull.append(point)
    yield from pairwise(hull)


def _rate(small: Point, large: Point) -> float:
    """Seconds saved per byte."""
    return (small.cost_s - large.cost_s) / (large.held_bytes - small.held_bytes)
