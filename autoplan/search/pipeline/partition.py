"""Where to cut a row of items into ranges, one for each rank: exact for sum plus bottleneck.

With a share and an extra of every rank and range, cuts are chosen that minimise

    sum over ranks of share + max over ranks of extra.

For a threshold t on extra, let S(t) be the least sum of shares over cuts whose extras are all at
most t: a shortest path over the ranks, as in Alpa's inter-operator search (Zheng et al. 2022,
section 5.2) with equal meshes. The answer is the least t + S(t) over the extras that occur. As S
never rises with t, no threshold between a and b is better than a + S(b): an interval whose bound
is no less than the best value so far is done, of the others the one with the least bound is split
first. The smallest threshold of all that any cuts meet is a shortest path of maxima.

Fed with lower bounds of shares and extras, the value is a lower bound of that of the true tables.
"""

from __future__ import annotations

import heapq

import numpy as np

from autoplan.search.pipeline.ranges import Bands, Partition

_NEVER = float("inf")


def partition(bands: Bands, *, below: float = _NEVER) -> Partition | None:
    """Cut a row of items into one range for each rank.

    Args:
        bands: shares, not negative, and extras, of any sign, of all ranks.
        below: only cuts whose value is less are looked for.

    Returns:
        The best cuts; None where there are none whose value is less than ``below``.
    """
    bands = bands.within(np.nextafter(min(below, bands.even()), _NEVER))
    return _best(bands, below) if bands.share.size else None


def _best(bands: Bands, below: float) -> Partition | None:
    highest = bands.least_share()
    if highest is None:
        return None
    bands = bands.within(min(below - highest.share, np.nextafter(highest.extra, _NEVER)))
    least = bands.least_extra()
    if least == _NEVER:
        return None
    lowest = bands.least_share(least)
    assert lowest is not None
    best = min(lowest, highest, key=lambda cuts: cuts.value)
    bands = bands.within(best.value - highest.share)
    found = _between(bands, lowest, highest, min(below, best.value))
    best = found or best
    return best if best.value < below else None


def _between(bands: Bands, lowest: Partition, highest: Partition, below: float) -> Partition | None:
    """The best cuts with a value less than ``below``; those of both ends are known."""
    thresholds = bands.thresholds(lowest.extra)
    best: Partition | None = None
    # Bound, places of the thresholds next to the interval, share at the upper one.
    intervals: list[tuple[float, int, int, float]] = []

    def consider(start: int, stop: int, share: float) -> None:
        """Thresholds from place ``start`` up to and without ``stop``, where S is ``share``."""
        if start < stop and (bound := thresholds[start] + share) < below:
            heapq.heappush(intervals, (float(bound), start, stop, share))

    consider(1, int(np.searchsorted(thresholds, highest.extra)), highest.share)
    while intervals:
        bound, start, stop, share = heapq.heappop(intervals)
        if bound >= below:
            break
        middle = (start + stop) // 2
        cuts = bands.least_share(float(thresholds[middle]))
        consider(middle + 1, stop, share)
        if cuts is None:
            continue
        if cuts.value < below:
            best, below = cuts, cuts.value
        consider(start, int(np.searchsorted(thresholds, cuts.extra)), cuts.share)
    return best
