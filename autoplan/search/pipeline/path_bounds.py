"""Lower bounds by one path through the schedule, say the critical one of a plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from autoplan.search.pipeline.alike import alike_rows
from autoplan.search.pipeline.bound_rows import PricedRows
from autoplan.search.pipeline.bounds import Bounds
from autoplan.search.pipeline.item_prices import ItemPricer
from cost_models.critical_path import CriticalPath

Floats = npt.NDArray[np.float64]
_MUCH = 0.05
"""Of all backwards on a path, those on one rank for which its columns are looked at."""


class PathBounds:
    """Bounds by one path alone, over the ranges that other bounds leave open."""

    def __init__(self, bounds: Bounds, path: CriticalPath) -> None:
        self._bounds = bounds
        self._rows = bounds.rows.along(path)
        self._tried: list[PricedRows] = []

    def add(self, prices: Floats, pricer: ItemPricer) -> None:
        """Raises the bounds by prices of memory, one for each rank."""
        self._tried += self._rows.of([prices], pricer)

    def alike(self) -> list[int]:
        """The ranks that much of the path is on and whose blocks all run alike."""
        row, weights = self._rows.rates.row, self._rows.rates.weights("share")
        least = _MUCH * sum(each.backwards for each in weights)
        return [
            rank
            for rank, each in enumerate(weights)
            if each.backwards >= least and row.is_alike(rank)
        ]

    def add_alike(self, ranks: Sequence[int], pricer: ItemPricer) -> None:
        """Raises the bounds where the blocks of some ranks, which all run alike, have to fit."""
        self._tried.append(alike_rows(self._rows, ranks, pricer))

    def bound_s(self, below_s: float) -> float:
        """What no plan of the configuration is faster than, or ``below_s`` if that is less."""
        tables, kept = self._bounds.open_to(below_s)
        share = np.max([tables.over(rows.share) for rows in self._tried], axis=0)
        found = tables.banded(share, np.zeros_like(share), kept).least_share()
        return min(below_s, found.share + self._bounds.head_s) if found else below_s
