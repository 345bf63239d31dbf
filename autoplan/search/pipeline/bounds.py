"""Lower bounds of every rank's objectives over ranges of items, and the cuts that they ask for.

For each range the largest bound of those at all prices of memory that were tried counts
(``bound_rows``). Ranges are looked at up to a length beyond which any cuts take longer, memory
aside, than the best up to it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autoplan.search.pipeline.bound_rows import BoundRows, PricedRows, rooms_of, twice_of
from autoplan.search.pipeline.item_prices import ItemPricer, ItemPrices, Rates
from autoplan.search.pipeline.item_values import ItemValues
from autoplan.search.pipeline.model import Model
from autoplan.search.pipeline.partition import Partition, partition
from autoplan.search.pipeline.range_rows import RangeRows
from autoplan.search.pipeline.range_tables import RangeTables
from autoplan.search.pipeline.ranges import Bands
from autoplan.search.pipeline.rank_memory import ROUNDING_BYTES
from autoplan.search.pipeline.rank_rates import RankRates
from autoplan.search.pipeline.room import late_parts, steps_fit
from autoplan.search.pipeline.whole import WholeCosts

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
_APART = 0.95


class Bounds:
    """Bounds of one configuration, which rise with every price of memory that is tried."""

    def __init__(self, costs: WholeCosts, model: Model, rates: RankRates) -> None:
        self.rates = rates
        self._values = ItemValues(model=model, row=rates.row, late=late_parts(costs, model))
        self.rows = BoundRows(
            costs=costs,
            rates=rates,
            values=self._values,
            rooms=rooms_of(costs, self._values),
            twice=twice_of(costs),
        )
        self._costs = costs
        self._watched = sorted({0, rates.ranks[-1] // 2, rates.ranks[-1]})
        self._tried: list[PricedRows] = []
        self._latest: dict[float, PricedRows] = {}
        self._most = int(rates.row.length_limits[1].max())
        self._tables = self._tables_to(-(-len(model.keys) // len(rates.ranks)) + 1)
        self._held: list[RangeRows] = []
        self._fits: Bools | None = None

    @property
    def late(self) -> frozenset[str]:
        """Parts of the root that are looked at in the backward of blocks."""
        return self._values.late

    @cached_property
    def head_s(self) -> float:
        """Beyond the tables: the largest gather that shows, where ranks have several stages."""
        if self.rates.stages_per_rank == 1:
            return 0.0
        pricer, elements = ItemPricer(costs=self._costs), self._values.model.elements
        return max(
            pricer.least_head_s(elements[region], is_block=is_block)
            for region, is_block in self._values.is_block.items()
        )

    def add(self, prices: Sequence[float], pricer: ItemPricer) -> None:
        """Raises the bounds by prices of memory: seconds of the step for a byte of a rank."""
        for price_s, rows in zip(prices, self.rows.of(prices, pricer), strict=True):
            self._tried.append(rows)
            self._latest[price_s] = rows
            self._tables.add(rows)

    def refine(self, cuts: Sequence[int], pricer: ItemPricer) -> None:
        """Raises the bounds by prices of every rank's own: that which bounds it best with given
        cuts, and those half way to its neighbours. Where what blocks make again has a price, less
        is left for what they keep, and a byte can be worth more: those beyond are tried too."""
        known = sorted(self._latest)
        best = [known.index(self._best_price(rank, cuts)) for rank in self.rates.ranks]
        for step in (0, -1, 1, 2, 4):
            near = [min(max(number + step, 0), len(known) - 1) for number in best]
            prices = np.array([known[n] + known[m] for n, m in zip(best, near, strict=True)]) / 2
            of_all = (self.rows,) if step <= 1 else ()
            for each in (*of_all, *self.rows.recomputing):
                (rows,) = each.of([prices], pricer)
                self._tried.append(rows)
                self._tables.add(rows)

    def cuts(self, *, fitting: bool = True) -> Partition | None:
        """The cuts with the least bound, if there are any: no plan is faster.

        Args:
            fitting: all ranges so that the fewest bytes of their items fit.
        """
        while True:
            kept = self._fitting if fitting else self._tables.allowed[None]
            found = partition(self._tables.bands(kept))
            value = found.value if found else math.inf
            if not self._widens(value):
                return found

    def weigh_passing(self) -> None:
        """From here on, ranges must hold what their blocks make again beside the fewest bytes."""
        if len(self._held) <= 1:
            self._held = [rows.held() for rows in (self.rows, *self.rows.recomputing)]
            self._fits = None

    def bands(self) -> Bands:
        """The bounds of all ranges whose items fit, as far as they were looked at."""
        return self._tables.bands(self._fitting)

    def near(self, cuts: Sequence[int]) -> list[float]:
        """Prices between that which bounds a rank best with given cuts and its neighbours, for a
        few ranks: the bound is concave in the price, so it can be higher there."""
        known = sorted(self._latest)
        found: dict[float, None] = {}
        for rank in self._watched:
            best = known.index(self._best_price(rank, cuts))
            around = known[max(0, best - 1) : best + 2]
            for low, high in itertools.pairwise(around):
                if low < _APART * high:
                    found[(low + high) / 2] = None
        return list(found)

    def best_prices(self, cuts: Sequence[int]) -> Floats:
        """For each rank, the price that bounds it best with given cuts."""
        return np.array([self._best_price(rank, cuts) for rank in self.rates.ranks])

    def prices(self, region: str, rates: Rates, pricer: ItemPricer) -> ItemPrices:
        """Prices of a region's items."""
        return self._values.prices(region, rates, pricer)

    def open_to(self, below_s: float) -> tuple[RangeTables, Bools]:
        """The ranges that can be in a plan that is faster, by case."""
        room_s = below_s - self.head_s
        while self._widens(room_s):
            pass
        bands = self._tables.bands(self._fitting)
        least = bands.least_share()
        below = bands.extra < (room_s - least.share if least else -math.inf)
        return self._tables, self._fitting & below

    @property
    def model(self) -> Model:
        """The items."""
        return self._values.model

    def forget(self) -> None:
        """Frees what was tried, when no bound is asked any more."""
        self._tried.clear()
        self._latest.clear()
        del self._tables, self._fits

    def _best_price(self, rank: int, cuts: Sequence[int]) -> float:
        of = rank, cuts[rank], cuts[rank + 1]
        values = {price_s: rows.at(*of, self.rows.tables) for price_s, rows in self._latest.items()}
        return max(sorted(values), key=lambda price_s: values[price_s])

    @property
    def _fitting(self) -> Bools:
        """Which ranges fit if their items take the fewest bytes that menus know of, and while the
        optimizer steps."""
        if self._fits is None:
            self._held = self._held or [self.rows.held()]
            self._fits = self._tables.allowed & self._tables.of(self._steps_fit)
            for held in self._held:
                self._fits = self._fits & (self._tables.over(held) <= ROUNDING_BYTES)
        return self._fits

    @cached_property
    def _steps_fit(self) -> Bools:
        return steps_fit(self._costs, self.model)

    def _tables_to(self, longest: int) -> RangeTables:
        tables = RangeTables(
            self.rates.row, min(longest, self._most), self.rows.tables, self.rows.cases
        )
        for rows in self._tried:
            tables.add(rows)
        return tables

    def _widens(self, value_s: float) -> bool:
        """Goes on to ranges with which cuts may be as good, if there are."""
        longest = self._tables.longest
        if longest == self._most or self._longer_s[longest + 1] >= value_s:
            return False
        enough = int(np.searchsorted(self._longer_s, value_s)) - 1
        self._tables = self._tables_to(min(enough, 2 * longest))
        self._fits = None
        return True

    @cached_property
    def _longer_s(self) -> Floats:
        """By number of items, what cuts with a range of as many or more take at least."""
        free = self._latest.get(0.0)
        items = len(self._costs.is_block)
        if free is None:
            return np.full(items + 1, -np.inf)
        ends = np.append(0.0, free.extra_items.min(axis=0).cumsum())
        length, end = np.mgrid[: items + 1, : items + 1]
        extra = np.where(end >= length, ends[end] - ends[end - length], np.inf).min(axis=1)
        least = np.minimum.accumulate(extra[::-1])[::-1]
        return free.share_items.min(axis=0).sum() + least
