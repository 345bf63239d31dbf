"""The order in which many small decisions are eliminated.

What is minimised is a sum of tables, each over few decisions. Eliminating decision v leaves the
table

    m(neighbours) = min over choices c of v of the sum of all tables that involve v

over the decisions that shared a table with v, and the optimum stays what it was (bucket
elimination: R. Dechter, Artificial Intelligence 113, 1999). First goes the decision that leaves the
smallest table. Graphs of operators are nearly chains, so tables stay small. Where that leads to a
table that is too large, first goes the one whose minimum is over the smallest table; and where that
does too, the one that brings the fewest others together for the first time (min-fill: U. Kjaerulff,
Aalborg University R 90-09, 1990).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Sequence

LARGEST_TABLE = 1 << 18
"""Entries of a table that is still worth making."""

Scope = tuple[int, ...]


def elimination_order(sizes: Sequence[int], scopes: Iterable[Scope]) -> tuple[int, ...] | None:
    """All decisions, each at its turn; None where a table would be too large.

    Args:
        sizes: number of choices of every decision.
        scopes: decisions of every table.
    """
    near: list[set[int]] = [set() for _ in sizes]
    for scope in scopes:
        for number in scope:
            near[number].update(scope)
    for number, others in enumerate(near):
        others.discard(number)
    for entries in (_left, _made):
        order = _by_table(sizes, [set(others) for others in near], entries)
        if order is not None:
            return order
    return _by_fill(sizes, near)


_Entries = Callable[[Sequence[int], list[set[int]], int], int]


def _left(sizes: Sequence[int], near: list[set[int]], number: int) -> int:
    """Entries of the table that eliminating a decision leaves."""
    return math.prod(sizes[other] for other in near[number])


def _made(sizes: Sequence[int], near: list[set[int]], number: int) -> int:
    """Entries of the table of which it is the least: over the decision too."""
    return _left(sizes, near, number) * sizes[number]


def _eliminate(near: list[set[int]], number: int) -> None:
    for other in near[number]:
        near[other] |= near[number]
        near[other] -= {other, number}


def _by_table(
    sizes: Sequence[int], near: list[set[int]], entries: _Entries
) -> tuple[int, ...] | None:
    waiting = [(entries(sizes, near, number), number) for number in range(len(sizes))]
    heapq.heapify(waiting)
    order: dict[int, None] = {}
    while waiting:
        known, number = heapq.heappop(waiting)
        if number in order or known != entries(sizes, near, number):
            continue
        if _made(sizes, near, number) > LARGEST_TABLE:
            return None
        order[number] = None
        _eliminate(near, number)
        for other in near[number]:
            heapq.heappush(waiting, (entries(sizes, near, other), other))
    return tuple(order)


def _by_fill(sizes: Sequence[int], near: list[set[int]]) -> tuple[int, ...] | None:
    def brought_together(number: int) -> tuple[int, int, int]:
        others = [other for other in near[number] if sizes[other] > 1]
        new = sum(b not in near[a] for a, b in itertools.combinations(others, 2))
        return new, _made(sizes, near, number), number

    order: list[int] = []
    waiting = {number: brought_together(number) for number in range(len(sizes))}
    while waiting:
        _, entries, number = min(waiting.values())
        if entries > LARGEST_TABLE:
            return None
        order.append(number)
        del waiting[number]
        _eliminate(near, number)
        changed = near[number].union(*(near[other] for other in near[number]))
        waiting.update((other, brought_together(other)) for other in changed if other in waiting)
    return tuple(order)
