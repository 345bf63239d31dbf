"""Values of ranges of items that are sums over their items and of a few tables of ranges.

For rank r and items i to j - 1 such a value is

    ends[r, j] + begins[r, i] + sum over tables t of weights[r, t] * table_t[i, j]

so that one objective at one price of memory is a few short rows, whatever ranges are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autoplan.search.pipeline.objectives import Row

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Lengths:
    """The ranges that ranks can have if none has more than so many items.

    Attributes:
        shortest: items of a range at entry 0.
        start: by length and end, the first item; 0 where there is none.
        allowed: by rank, length and end, whether the rank can have the range, all others too.
    """

    shortest: int
    start: npt.NDArray[np.int64]
    allowed: npt.NDArray[np.bool_]

    def of(self, tables: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """From tables by begin and end, of shape (any, items + 1, items + 1), those by length."""
        return tables[:, self.start, np.arange(tables.shape[2])]


def lengths_of(row: Row, longest: int) -> Lengths:
    """The ranges of up to ``longest`` items."""
    (low, high), (fewest, most) = row.cuts(longest), row.length_limits
    fewest, most = np.maximum(fewest, low[1:] - high[:-1]), np.minimum(most, high[1:] - low[:-1])
    length = np.arange(fewest.min(), min(longest, most.max()) + 1)
    ends = np.arange(len(row.is_block) + 1)
    start = ends - length[:, None]
    low, high = low[:, None, None], high[:, None, None]
    allowed = (start >= low[:-1]) & (start <= high[:-1]) & (ends >= low[1:]) & (ends <= high[1:])
    fewest, most = fewest[:, None], most[:, None]
    allowed &= ((length >= fewest) & (length <= most))[:, :, None]
    return Lengths(shortest=int(length[0]), start=np.maximum(start, 0), allowed=allowed)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RangeRows:
    """Values of all ranges of all ranks.

    Attributes:
        ends, begins: of shape (ranks, items + 1).
        weights: of shape (ranks, tables).
    """

    ends: Floats
    begins: Floats
    weights: Floats

    def over(self, lengths: Lengths, tables: Floats) -> Floats:
        """By rank, length and end.

        Args:
            tables: by number, length and end.
        """
        values = self.begins[:, lengths.start] + self.ends[:, None, :]
        if self.weights.any():
            values += np.tensordot(self.weights, tables, axes=1)
        return values

    def at(self, rank: int, first: int, stop: int, tables: Floats) -> float:
        """Of one range.

        Args:
            tables: by number, begin and end.
        """
        apart = self.weights[rank] @ tables[:, first, stop]
        return float(self.ends[rank, stop] + self.begins[rank, first] + apart)
