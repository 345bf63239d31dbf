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

    def least_of(self, values: Floats) -> Floats:
        """The least value of the items of each range, from values by rank and item."""
        least = np.full((len(values), values.shape[1] + 1), np.inf)
        found = []
        for length in range(1, self.shortest + len(self.start)):
            np.minimum(least[:, length:], values[:, : -length + 1 or None], out=least[:, length:])
            found.append(least.copy())
        return np.stack(found[self.shortest - 1 :], axis=1)

    def sums_of(self, values: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """Of how many items of each range something holds."""
        ends = np.concatenate([[0], np.cumsum(values)])
        return ends - ends[self.start]


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


MODE_CASES = 3
"""Of ranges: none of whose blocks runs again, one, or several."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ModeRows:
    """Values of ranges whose blocks each run all again or nothing.

    Attributes:
        nothing: of ranges of which no block runs again.
        again: of each block that does, by rank and item, how much more than one that does not; inf
            for what is no block.
        above: how much more than the better of the two.
    """

    nothing: RangeRows
    again: Floats
    above: Floats

    def over(self, lengths: Lengths, tables: Floats, least: Floats) -> Floats:
        """By case (``MODE_CASES``), rank, length and end.

        Args:
            tables: as of ``RangeRows.over``.
            least: values of ranges however their blocks run.
        """
        nothing = self.nothing.over(lengths, tables)
        again, above = (lengths.least_of(each) for each in (self.again, self.above))
        blocks = lengths.sums_of(np.isfinite(self.above[0]))
        several = np.where(blocks > 1, least + 2 * above, np.inf)
        return np.array([nothing, nothing + again, several])


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RangeRows:
    """Values of all ranges of all ranks.

    Attributes:
        ends, begins: of shape (ranks, items + 1).
        weights: of shape (ranks, tables).
        modes: of ranges by what their blocks run again, where that is known.
    """

    ends: Floats
    begins: Floats
    weights: Floats
    modes: ModeRows | None = None

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
