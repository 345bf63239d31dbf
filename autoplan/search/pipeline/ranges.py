"""Ranges of a row of items by their lengths, and shortest paths over ranks that take one each.

A table of all ranges (i, j) has few entries that count: ranges far from the mean length fit no
memory or are too slow. Kept are *bands*: entry (l, j) is for the range of the l-th length that ends
before item j, over only those lengths that any rank can have. One rank's step of a path is then
one operation on whole arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_NEVER = float("inf")


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """Cuts of the row into a range for each rank.

    Attributes:
        cuts: rank r has the items from ``cuts[r]`` up to and without ``cuts[r + 1]``; the first is
            0, the last the number of items.
        share: the sum of shares.
        extra: the largest extra.
    """

    cuts: tuple[int, ...]
    share: float
    extra: float

    @property
    def value(self) -> float:
        return self.share + self.extra


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Bands:
    """Shares and extras of ranges, of shape (ranks, lengths, items + 1).

    Attributes:
        shortest: the first length.
        share, extra: inf where there is no range, both at the same entries.
    """

    shortest: int
    share: Floats
    extra: Floats

    @property
    def ranks(self) -> int:
        return self.share.shape[0]

    @property
    def items(self) -> int:
        return self.share.shape[2] - 1

    def within(self, most: float) -> Bands:
        """Only ranges whose extra is less than ``most``, and only their lengths."""
        kept = self.extra < most
        used = np.flatnonzero(kept.any(axis=(0, 2)))
        of = slice(used[0], used[-1] + 1) if len(used) else slice(0, 0)
        share, extra = (
            np.where(kept[:, of], values[:, of], _NEVER) for values in (self.share, self.extra)
        )
        return Bands(shortest=self.shortest + (of.start or 0), share=share, extra=extra)

    def thresholds(self, least: float) -> Floats:
        """The extras that occur, from ``least`` on, in order."""
        return np.unique(self.extra[(self.extra >= least) & (self.extra < _NEVER)])

    def least_extra(self) -> float:
        """The least that the largest extra of any cuts can be."""
        return float(self._reach(self.extra, np.maximum, -_NEVER)[-1, -1])

    def least_share(self, most_extra: float = _NEVER) -> Partition | None:
        """The least sum of shares where no extra is more than ``most_extra``."""
        costs = np.where(self.extra <= most_extra, self.share, _NEVER)
        reach = self._reach(costs, np.add, 0.0)
        share = float(reach[-1, -1])
        return self._cuts(costs, reach) if share < _NEVER else None

    def before(self) -> Floats:
        """By rank and cut, the least sum of shares of all ranks before it up to the cut."""
        reach = self._reach(self.share, np.add, 0.0)
        return reach[:-1, reach.shape[1] - self.share.shape[2] :]

    def behind(self) -> Floats:
        """By rank and cut, the least sum of shares of all ranks behind it from the cut on."""
        ends = self.share.shape[2]
        found = np.full((self.ranks, ends), _NEVER)
        found[-1, -1] = 0.0
        for rank in range(self.ranks - 1, 0, -1):
            through = self.share[rank] + found[rank]
            for number, values in enumerate(through):
                length = self.shortest + number
                starts = found[rank - 1, : max(0, ends - length)]
                np.minimum(starts, values[length:], out=starts)
        return found

    def even(self) -> float:
        """The sum of shares and the largest extra where ranks have as many items, or nearly."""
        cuts = np.arange(self.ranks + 1) * self.items // self.ranks
        length = np.diff(cuts) - self.shortest
        if length.min() < 0 or length.max() >= self.share.shape[1]:
            return _NEVER
        of = np.arange(self.ranks), length, cuts[1:]
        return float(self.share[of].sum() + self.extra[of].max())

    def _reach(self, costs: Floats, join: np.ufunc, start: float) -> Floats:
        """Least cost of the first ranks up to each cut, of shape (ranks + 1, longest + items + 1).

        Cut 0 stands behind as many entries of inf as the longest range has items.
        """
        ranks, lengths, ends = costs.shape
        longest = self.shortest + lengths - 1
        reach = np.full((ranks + 1, longest + ends), _NEVER)
        reach[0, longest] = start
        row, step = reach.strides
        before = as_strided(reach[:, lengths - 1 :], (ranks + 1, lengths, ends), (row, -step, step))
        joined = np.empty((lengths, ends))
        for rank in range(ranks):
            join(before[rank], costs[rank], out=joined)
            np.minimum.reduce(joined, axis=0, out=reach[rank + 1, longest:], initial=_NEVER)
        return reach

    def _cuts(self, costs: Floats, reach: Floats) -> Partition:
        lengths = costs.shape[1]
        end = self.items
        cuts, shares, extras = [end], [], []
        for rank in range(self.ranks - 1, -1, -1):
            through = costs[rank, :, end] + reach[rank, end : end + lengths][::-1]
            length = int(through.argmin())
            shares.append(float(self.share[rank, length, end]))
            extras.append(float(self.extra[rank, length, end]))
            end -= self.shortest + length
            cuts.append(end)
        return Partition(cuts=tuple(cuts[::-1]), share=sum(shares[::-1]), extra=max(extras))
