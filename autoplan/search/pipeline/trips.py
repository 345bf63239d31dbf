"""Whether any cuts keep round trips of neighbour ranks within a limit of the step.

In the letters of ``round_trips``: for a step of less than t beyond the shares, every rank b and all
a need, with the most such trips,

    K = sum of c + sum of h - k T_b <= (N_b - n k) / n x (T_b - c_b),  T_b = (t - w_b B_b) / N_b

The largest K over all a is known from that of the rank before; the least over all cuts is found
rank by rank. References for w_b B_b that do not depend on the range, and T that do not rise with b,
only make K less. Trips are looked at within groups of ``GROUP`` ranks.

Which a the largest K is of is not known. So N_b - n k, which is N_b mod k, is taken as k - 1 with
the k of the group's first rank: N_b mod k' <= k - 1 for each k' <= k, over as many trips or more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
GROUP = 16
"""Ranks within which trips are looked at."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Trips:
    """Seconds of ranges, by rank, length and end.

    Attributes:
        cycle_s: of a forward and a backward.
        own_s: of what follows a rank's last forward in turn: as many backwards as it has forwards
            ahead, or the last microbatch's way through the ranks behind it and back.
        extra_s: bounds of what paths take on which one rank alone goes round; inf where there is no
            range.
        own_reference_s: of ``own_s``, by rank.
        hops_s: by rank and cut before it, a message there and one back.
        start: by length and end, the first item.
        left: by rank, N.
    """

    cycle_s: Floats
    own_s: Floats
    extra_s: Floats
    own_reference_s: Floats
    hops_s: Floats
    start: npt.NDArray[np.int64]
    left: npt.NDArray[np.int64]

    def fit(self, limit_s: float) -> bool:
        """Whether there are cuts of which no path is known to take more than a limit."""
        goal_s = (limit_s - self.own_reference_s) / np.maximum(1, self.left)
        goal_s = np.maximum.accumulate(goal_s[::-1])[::-1]
        counts = self.own_s >= (limit_s - self.left * goal_s)[:, None, None]
        open_ = self.extra_s <= limit_s
        over = np.full(self.start.shape[1], np.inf)
        over[0] = 0.0
        for rank in range(len(goal_s)):
            trip = rank % GROUP
            if trip:
                goes_on = over + self.hops_s[rank] + (goal_s[rank - 1] - goal_s[rank])
                over = np.maximum(0.0, goes_on)
            else:
                over = np.where(over < np.inf, 0.0, np.inf)
            short_s = np.where(open_[rank], goal_s[rank] - self.cycle_s[rank], 0.0)
            reached = np.where(open_[rank], over[self.start] - short_s, np.inf)
            trips = int(self.left[rank]) // (trip + 1)
            if trips:
                slack = np.maximum(0.0, trip / trips * short_s)
                reached[counts[rank] & (reached > slack)] = np.inf
            over = reached.min(axis=0)
        return bool(over[-1] < np.inf)
