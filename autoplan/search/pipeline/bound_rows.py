"""Bounds of both objectives of every rank over all ranges of items, at prices of memory.

For a rank r, items i to j - 1 and a price p >= 0 of a byte, Lagrangian relaxation bounds

    objective >= sum over items of the least value at the prices
                 - p * (limit - what the rank holds whatever its columns are)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autoplan.search.pipeline.item_prices import ItemPricer, Rates
from autoplan.search.pipeline.item_values import ItemValues, Wanted
from autoplan.search.pipeline.range_ends import RangeEnds, readers_beyond_one
from autoplan.search.pipeline.range_rows import RangeRows
from autoplan.search.pipeline.rank_rates import BYTE, NAMES, Name, RankRates, RateRows, rates_of
from autoplan.search.pipeline.room import room_bytes
from autoplan.search.pipeline.whole import WholeCosts
from cost_models.critical_path import CriticalPath

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PricedRows:
    """Both objectives at one price of memory.

    Attributes:
        share, extra: bounds of all ranges.
        share_items, extra_items: bounds of the items alone, by rank and item.
    """

    byte_price_s: float
    share: RangeRows
    extra: RangeRows
    share_items: Floats
    extra_items: Floats

    def at(self, rank: int, first: int, stop: int, tables: Floats) -> float:
        """The bound of both objectives of one range together."""
        return sum(rows.at(rank, first, stop, tables) for rows in (self.share, self.extra))


@dataclass(frozen=True, kw_only=True)
class BoundRows:
    """Bounds of one configuration."""

    costs: WholeCosts
    rates: RankRates
    values: ItemValues

    def along(self, path: CriticalPath) -> BoundRows:
        """Bounds by one path alone."""
        return replace(self, rates=self.rates.along(path))

    def of(self, prices: Sequence[float], pricer: ItemPricer) -> Iterator[PricedRows]:
        """Bounds at prices of memory: seconds of the step for a byte of a rank."""
        wanted = {
            (name, price_s): Wanted(rows=self._rates[name], byte_price_s=price_s)
            for price_s in prices
            for name in NAMES
            if self.rates.counts(name)
        }
        items = dict(zip(wanted, self.values.of(list(wanted.values()), pricer), strict=True))
        nothing = np.zeros((len(self.rates.ranks), len(self.costs.is_block)))
        for price_s in prices:
            found = [items.get((name, price_s), nothing) for name in NAMES]
            share, extra = (
                self._rows(name, price_s, of_items, pricer)
                for name, of_items in zip(NAMES, found, strict=True)
            )
            yield PricedRows(
                byte_price_s=price_s,
                share=share,
                extra=extra,
                share_items=found[0],
                extra_items=found[1],
            )

    def held(self) -> RangeRows:
        """The fewest bytes that menus know of, less those that there are."""
        root, blocks = (self.rates.bytes_held(of_blocks=of_blocks) for of_blocks in (False, True))
        rows = RateRows(seconds=root, byte=root), RateRows(seconds=blocks, byte=blocks)
        pricer = ItemPricer(costs=self.costs)
        (items,) = self.values.of([Wanted(rows=rows, byte_price_s=0.0)], pricer)
        return _summed(items, self._ends.leaving_bytes, 0.0, self._weights(blocks, root, pricer))

    @cached_property
    def tables(self) -> Floats:
        """Of all ranges by begin and end: bytes for their items, and for each parameter that
        several parts of the root read, how many more of them than one there are."""
        more = [readers_beyond_one(items, len(self.costs.is_block)) for items, _ in self.costs.tied]
        room = room_bytes(self.costs, self.values.model, self.values.widest)
        return np.array([room, *more])

    def _rows(self, name: Name, price_s: float, items: Floats, pricer: ItemPricer) -> RangeRows:
        """What ranges cost: their items, calls of every stage, messages between stages, memory."""
        root, blocks = (rows.at(price_s) for rows in self._rates[name])
        shared_s = np.zeros(len(blocks))
        if self.costs.shared_s:
            counted = [pricer.forward_weight(rates_of(row)) for row in blocks]
            shared_s = self.costs.shared_s * np.array(counted)
        ends_s, begins_s = self._ends.sends_s(name)
        byte_s = blocks[:, [BYTE]]
        ends_s = ends_s + shared_s[:, None] + byte_s * self._ends.leaving_bytes
        return _summed(items, ends_s, begins_s, self._weights(blocks, root, pricer))

    def _weights(self, blocks: Floats, root: Floats, pricer: ItemPricer) -> Floats:
        """By rank, what each of ``tables`` counts: memory at its price, and parameters at theirs
        where one range can have several readers."""
        weights = np.zeros((len(blocks), len(self.tables)))
        weights[:, 0] = -blocks[:, BYTE]
        least, most = self.rates.row.cuts(len(self.costs.is_block))
        for number, (items, elements) in enumerate(self.costs.tied, 1):
            for rank in np.flatnonzero(self.tables[number, least[:-1], most[1:]]):
                rates = rates_of(root[rank])
                weights[rank, number] = -self._twice(items, elements, rates, pricer)
        return weights

    def _twice(
        self, items: tuple[int, ...], elements: float, rates: Rates, pricer: ItemPricer
    ) -> float:
        """What one more reader of a parameter counts too often."""
        model = self.values.model
        prices = {
            model.keys[item]: self.values.prices(model.keys[item], rates, pricer).prices
            for item in items
        }
        for tied in model.tied:
            if tied.items == items:
                return tied.twice(model.keys, model.menus, prices) / (len(items) - 1)
        return elements * prices[model.keys[items[0]]].trained_elements

    @cached_property
    def _rates(self) -> dict[Name, tuple[RateRows, RateRows]]:
        """Of parts of the root and of blocks."""
        return {
            name: (self.rates.rows(name, of_blocks=False), self.rates.rows(name, of_blocks=True))
            for name in NAMES
        }

    @cached_property
    def _ends(self) -> RangeEnds:
        return RangeEnds(costs=self.costs, rates=self.rates)


def _summed(items: Floats, ends: Floats, begins: Floats | float, weights: Floats) -> RangeRows:
    """Sums over items, and what is beside them."""
    sums = np.concatenate([np.zeros((len(items), 1)), items.cumsum(axis=1)], axis=1)
    return RangeRows(ends=sums + ends, begins=begins - sums, weights=weights)
