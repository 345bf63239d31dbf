"""Answers a ``Problem`` by the cheapest exact method.

Without overlaps and memory limit, elimination finds the optimum. An overlap exposes the larger of
two sums over choices, s = max(floor * messages, messages - window), and for every share h in [0, 1]

    s >= h * floor * messages + (1 - h) * (messages - window)

so elimination of the right-hand sides is a lower bound, and its choices are a plan. Where the plan
costs no more than the bound, both are the optimum: at h = 1 when all messages hide, at h = 0 when
none can hide more. In between h is halved a few times. A plan that fits the memory limit although
it was made without is the best with it, too. What is left goes to the integer program.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from autoplan.search import ilp
from autoplan.search.elimination import Elimination
from autoplan.search.ilp import RELATIVE_GAP
from autoplan.search.problem import (
    Overlap,
    Problem,
    Solution,
    memory_of,
    overlap_sums,
    time_of,
)

_MOST_SHARES = 8
_ROUNDING = 1e-12

_Rows = tuple[tuple[int, tuple[float, ...]], ...]


def solve(problem: Problem, *, relative_gap: float = RELATIVE_GAP) -> Solution | None:
    """The best assignment within the memory limit, or None when there is none.

    Args:
        problem: the candidate's decisions.
        relative_gap: how far the assignment may be from the proven bound.
    """
    if all(len(node.choices) == 1 for node in problem.nodes):
        return ilp.only_solution(problem)
    fastest = _fastest(problem, max(relative_gap, _ROUNDING))
    if fastest is None:
        return ilp.solve(problem, relative_gap=relative_gap)
    if fastest.time_s == math.inf:
        return None
    if problem.limit_pages is None or fastest.memory_pages <= problem.limit_pages:
        return fastest
    return ilp.solve(problem, relative_gap=relative_gap)


def _fastest(problem: Problem, relative_gap: float) -> Solution | None:
    """The best assignment without memory limit; None when elimination does not prove it."""
    elimination = Elimination(problem)
    if not elimination.is_small:
        return None
    shares = [_Share(overlap) for overlap in problem.overlaps]
    best: Solution | None = None
    bound_s = -math.inf
    for _ in range(_MOST_SHARES if shares else 1):
        least_s, choices = elimination.minimise(_node_seconds(problem, shares))
        fixed_s = problem.fixed_s + sum(share.fixed_s for share in shares)
        bound_s = max(bound_s, fixed_s + least_s)
        time_s = time_of(problem, choices)
        if best is None or time_s < best.time_s:
            memory_pages = memory_of(problem, choices)
            best = Solution(
                choices=choices, time_s=time_s, memory_pages=memory_pages, bound_s=-math.inf
            )
        if best.time_s == math.inf or bound_s >= best.time_s * (1 - relative_gap):
            return replace(best, bound_s=min(bound_s, best.time_s))
        for share in shares:
            share.follow(choices)
    return None


def _node_seconds(problem: Problem, shares: Iterable[_Share]) -> list[npt.NDArray[np.float64]]:
    """Seconds of every choice of every node, with its part in the messages and windows."""
    seconds = [np.array([choice.time_s for choice in node.choices]) for node in problem.nodes]
    for share in shares:
        for weight, rows in share.weighted:
            for node, row in rows if weight else ():
                seconds[node] += weight * np.array(row)
    return seconds


@dataclass(slots=True)
class _Share:
    """The share h of an overlap: 1 first, then 0, then ever closer to where both sides meet."""

    overlap: Overlap
    hidden: float = 1.0
    lowest: float = 0.0
    highest: float = 1.0

    @property
    def weighted(self) -> tuple[tuple[float, _Rows], tuple[float, _Rows]]:
        """The rows of the right-hand side, with their weights."""
        exposed = 1 - self.hidden
        sent = self.hidden * self.overlap.floor + exposed
        return (sent, self.overlap.messages_s), (-exposed, self.overlap.window_s)

    @property
    def fixed_s(self) -> float:
        """What of the right-hand side does not depend on choices."""
        (sent, _), (window, _) = self.weighted
        return sent * self.overlap.fixed_messages_s + window * self.overlap.fixed_window_s

    def follow(self, choices: Sequence[int]) -> None:
        """Moves towards the side that is larger under these choices."""
        messages, window = overlap_sums(self.overlap, choices)
        first = self.hidden == self.highest == 1.0
        if self.overlap.floor * messages >= messages - window:
            self.lowest = self.hidden
        else:
            self.highest = self.hidden
            if first:
                self.hidden = 0.0
                return
        self.hidden = (self.lowest + self.highest) / 2
