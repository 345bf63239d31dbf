"""The largest bounds so far of all ranges up to some length."""

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
    """Tables by rank, length and end of range.

    Args:
        longest: the most items of a range.
        tables: by number, begin and end, what the rows' weights are of.
    """

    def __init__(self, row: Row, longest: int, tables: Floats) -> None:
        self.longest = longest
        self._lengths = lengths_of(row, longest)
        self._tables = self._lengths.of(tables)
        self._share = np.full(self.allowed.shape, -np.inf)
        self._extra = np.full(self.allowed.shape, -np.inf)

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
        """Values of all ranges."""
        return rows.over(self._lengths, self._tables)

    def add(self, rows: PricedRows) -> None:
        """Raises the bounds."""
        np.maximum(self._share, self.over(rows.share), out=self._share)
        np.maximum(self._extra, self.over(rows.extra), out=self._extra)

    def bands(self, kept: Bools) -> Bands:
        """The bounds of some ranges."""
        return self.banded(self._share, self._extra, kept)

    def banded(self, share: Floats, extra: Floats, kept: Bools) -> Bands:
        """Other values of some ranges."""
        return Bands(
            shortest=self._lengths.shortest,
            share=np.where(kept, share, np.inf),
            extra=np.where(kept, extra, np.inf),
        )
