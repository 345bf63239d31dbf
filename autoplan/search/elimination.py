"""The order in which many small decisions are eliminated.

What is minimised is a sum of tables, each over few decisions. Eliminating decision v leaves the
table

    m(neighbours) = min over choices c of v of the sum of all tables that involve v

over the decisions that shared a table with v, and the optimum stays what it was (bucket
elimination: R. Dechter, Artificial Intelligence 113, 1999). Decisions go in the order of the
smallest table left. Graphs of operators are nearly chains, so tables stay small.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence

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

    def entries(number: int) -> int:
        return math.prod(sizes[other] for other in near[number]) * sizes[number]

    waiting = [(entries(number), number) for number in range(len(sizes))]
    heapq.heapify(waiting)
    order: dict[int, None] = {}
    while waiting:
        known, number = heapq.heappop(waiting)
        if number in order or known != entries(number):
            continue
        if known > LARGEST_TABLE:
            return None
        order[number] = None
        for other in near[number]:
            near[other] |= near[number]
            near[other] -= {other, number}
            heapq.heappush(waiting, (entries(other), other))
    return tuple(order)
