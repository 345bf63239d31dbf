"""Ranges of a row of items by their lengths, and shortest paths over ranks that take one each.

A table of all ranges (i, j) has few entries that count: ranges far from the mean length fit no
memory or are too slow. Kept are *bands*: entry (l, j) is for the range of length l that ends
before item j, over only those lengths that any rank can have. One rank's step of a path is then
one operation on whole arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """Shares and extras of ranges, of shape (tables, lengths, items + 1).

    Attributes:
        shortest: the first length.
        share, extra: inf where there is no range, both at the same entries.
        table_of: number of each rank's table.
    """

    shortest: int
    share: Floats
    extra: Floats
    table_of: tuple[int, ...]

    @property
    def items(self) -> int:
        return self.share.shape[2] - 1

    def within(self, most: float) -> Bands:
        """Only ranges whose extra is less than ``most``, and only their lengths."""
        return _trimmed(self, self.extra < most)

    def thresholds(self, least: float) -> Floats:
        """The extras that occur, from ``least`` on, in order."""
        found = np.unique(self.extra)
        return found[(found >= least) & (found < _NEVER)]

    def least_extra(self) -> float:
        """The least that the largest extra of any cuts can be."""
        return float(self._reach(self.extra, np.maximum, -_NEVER)[-1, -1])

    def least_share(self, most_extra: float = _NEVER) -> Partition | None:
        """The least sum of shares where no extra is more than ``most_extra``."""
        costs = np.where(self.extra <= most_extra, self.share, _NEVER)
        reach = self._reach(costs, np.add, 0.0)
        share = float(reach[-1, -1])
        return self._cuts(costs, reach) if share < _NEVER else None

    def _reach(self, costs: Floats, join: np.ufunc, start: float) -> Floats:
        """Least cost of the first ranks up to each cut, of shape (ranks + 1, longest + items + 1).

        Cut 0 stands behind as many entries of inf as the longest range has items.
        """
        lengths, ends = costs.shape[1:]
        longest = self.shortest + lengths - 1
        ranks = len(self.table_of)
        reach = np.full((ranks + 1, longest + ends), _NEVER)
        reach[0, longest] = start
        row, step = reach.strides
        before = as_strided(reach[:, lengths - 1 :], (ranks + 1, lengths, ends), (row, -step, step))
        joined = np.empty((lengths, ends))
        for rank, table in enumerate(self.table_of):
            join(before[rank], costs[table], out=joined)
            np.minimum.reduce(joined, axis=0, out=reach[rank + 1, longest:], initial=_NEVER)
        return reach

    def _cuts(self, costs: Floats, reach: Floats) -> Partition:
        lengths = costs.shape[1]
        end = self.items
        cuts, shares, extras = [end], [], []
        for rank in range(len(self.table_of) - 1, -1, -1):
            table = self.table_of[rank]
            through = costs[table, :, end] + reach[rank, end : end + lengths][::-1]
            length = int(through.argmin())
            shares.append(float(self.share[table, length, end]))
            extras.append(float(self.extra[table, length, end]))
            end -= self.shortest + length
            cuts.append(end)
        return Partition(cuts=tuple(cuts[::-1]), share=sum(shares[::-1]), extra=max(extras))


def banded(
    share: Sequence[Floats], extra: Sequence[Floats], *, most: float, shortest: int
) -> Bands | None:
    """Bands of the tables of all ranks, without extras of more than ``most``; None if none is left.

    The other arguments are those of ``partition``.
    """
    numbers: dict[tuple[int, int], int] = {}
    table_of = tuple(
        numbers.setdefault((id(one), id(other)), len(numbers))
        for one, other in zip(share, extra, strict=True)
    )
    ends = share[0].shape[0]
    start, end = np.divmod(np.arange(ends * ends), ends)
    kept = np.zeros(ends * ends, dtype=bool)
    first = [table_of.index(number) for number in range(len(numbers))]
    for rank in first:
        kept |= (extra[rank] <= most).ravel()
    lengths = (end - start)[kept]
    lengths = lengths[lengths >= shortest]
    if not len(lengths):
        return None
    length, end = np.mgrid[lengths.min() : lengths.max() + 1, :ends]
    place = np.maximum(end - length, 0) * ends + end
    of_share, of_extra = (
        np.stack([np.take(tables[rank], place) for rank in first]) for tables in (share, extra)
    )
    kept = (of_extra <= most) & (of_share < _NEVER) & (length <= end)
    bands = Bands(shortest=int(length[0, 0]), share=of_share, extra=of_extra, table_of=table_of)
    return _trimmed(bands, kept)


def _trimmed(bands: Bands, kept: NDArray[np.bool_]) -> Bands:
    used = np.flatnonzero(kept.any(axis=(0, 2)))
    of = slice(used[0], used[-1] + 1) if len(used) else slice(0, 0)
    share, extra = (
        np.where(kept[:, of], values[:, of], _NEVER) for values in (bands.share, bands.extra)
    )
    return Bands(
        shortest=bands.shortest + (of.start or 0),
        share=share,
        extra=extra,
        table_of=bands.table_of,
    )
