"""Overlaps as sums over choices, which bound them from below.

An overlap exposes the larger of two sums, s = max(floor * messages, messages - window), and for
every share h in [0, 1]

    s >= h * floor * messages + (1 - h) * (messages - window)

At h = 1 both sides are equal when all messages hide, at h = 0 when no more can hide. In between the
best h is where both sums meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoplan.search.elimination import Costs
from autoplan.search.problem import Overlap, Problem, overlap_sums
from autoplan.search.tables import add_rows


class Hiding:
    """The time of a problem's decisions with its overlaps bounded from below."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._shares = [_Share(overlap) for overlap in problem.overlaps]

    def seconds(self) -> list[Costs]:
        """Seconds of every choice of every decision, with its part in messages and windows."""
        nodes = self._problem.nodes
        seconds = [np.array([choice.time_s for choice in node.choices]) for node in nodes]
        for share in self._shares:
            add_rows(seconds, share.sent, share.overlap.messages_s)
            add_rows(seconds, -share.exposed, share.overlap.window_s)
        return seconds

    @property
    def fixed_s(self) -> float:
        """What does not depend on choices."""
        return self._problem.fixed_s + sum(share.fixed_s for share in self._shares)

    def follow(self, choices: Sequence[int]) -> None:
        """Moves every share towards the side that is larger under these choices."""
        for share in self._shares:
            share.follow(choices)


@dataclass(slots=True)
class _Share:
    """The share h of an overlap: 1 first, then 0, then ever closer to where both sides meet."""

    overlap: Overlap
    hidden: float = 1.0
    lowest: float = 0.0
    highest: float = 1.0

    @property
    def exposed(self) -> float:
        return 1 - self.hidden

    @property
    def sent(self) -> float:
        """How often messages count."""
        return self.hidden * self.overlap.floor + self.exposed

    @property
    def fixed_s(self) -> float:
        return (
            self.sent * self.overlap.fixed_messages_s - self.exposed * self.overlap.fixed_window_s
        )

    def follow(self, choices: Sequence[int]) -> None:
        messages, window = overlap_sums(self.overlap, choices)
        untried = self.hidden == self.highest == 1.0
        if self.overlap.floor * messages >= messages - window:
            self.lowest = self.hidden
        else:
            self.highest = self.hidden
        towards_one = self.lowest == self.hidden
        self.hidden = 0.0 if untried and not towards_one else (self.lowest + self.highest) / 2
