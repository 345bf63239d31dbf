"""The largest bounds so far of all ranges up to some length.

Where blocks run all again or nothing, ranges are told apart by how many of them do
(``range_rows.ModeRows``): columns of both would else be mixed, of which few blocks cannot have any
fraction. A range is bounded by the least of these *cases*, each at the prices that are best for it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from autoplan.search.pipeline.bound_rows import PricedRows
from autoplan.search.pipeline.objectives import Row
from autoplan.search.pipeline.range_rows import RangeRows, lengths_of
from autoplan.search.pipeline.ranges import Bands

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class RangeTables:
    """Tables by case, rank, length and end of range.

    Args:
        longest: the most items of a range.
        tables: by number, begin and end, what the rows' weights are of.
        cases: how many there are.
    """

    def __init__(self, row: Row, longest: int, tables: Floats, cases: int) -> None:
        self.longest = longest
        self._lengths = lengths_of(row, longest)
        self._tables = self._lengths.of(tables)
        self._share = np.full((cases, *self.allowed.shape), -np.inf)
        self._extra = np.full((cases, *self.allowed.shape), -np.inf)

    @property
    def allowed(self) -> Bools:
        """What ranks can have."""
        return self._lengths.allowed

    @property
    def start(self) -> npt.NDArray[np.int64]:
        """By length and end, the first item."""
        return self._lengths.start

    def of(self, kept: Bools) -> Bools:
        """What is known of ranges by begin and end, by length and end."""
        return self._lengths.of(kept[None])[0]

    def over(self, rows: RangeRows) -> Floats:
        """Values of all ranges, by case."""
        least = rows.over(self._lengths, self._tables)
        if rows.modes is None:
            return np.broadcast_to(least, self._share.shape)
        return rows.modes.over(self._lengths, self._tables, least)

    def add(self, rows: PricedRows) -> None:
        """Raises the bounds."""
        np.maximum(self._share, self.over(rows.share), out=self._share)
        np.maximum(self._extra, self.over(rows.extra), out=self._extra)

    def bands(self, kept: Bools) -> Bands:
        """The bounds of some ranges, which are kept in some cases or none."""
        return self.banded(self._share, self._extra, kept)

    def banded(self, share: Floats, extra: Floats, kept: Bools) -> Bands:
        """Other values of some ranges."""
        return Bands(
            shortest=self._lengths.shortest, share=_least(share, kept), extra=_least(extra, kept)
        )


def _least(values: Floats, kept: Bools) -> Floats:
    """By rank, length and end, the least of the cases that are kept; inf where none is."""
    return np.where(kept, values, np.inf).min(axis=0)
