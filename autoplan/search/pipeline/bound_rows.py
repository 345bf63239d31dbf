"""Bounds of both objectives of every rank over all ranges of items, at prices of memory.

For a rank r, items i to j - 1 and a price p >= 0 of a byte, Lagrangian relaxation bounds

    objective >= sum over items of the least value at the prices
                 - p * (limit - what the rank holds whatever its columns are)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autoplan.search.pipeline.item_prices import ItemPricer, Rates
from autoplan.search.pipeline.item_values import ItemValues, Wanted
from autoplan.search.pipeline.range_ends import RangeEnds, readers_beyond_one
from autoplan.search.pipeline.range_rows import MODE_CASES, ModeRows, RangeRows
from autoplan.search.pipeline.rank_rates import (
    BYTE,
    NAMES,
    Name,
    Price,
    RankRates,
    RateRows,
    rates_of,
)
from autoplan.search.pipeline.room import (
    Passing,
    parts_behind,
    passing_of,
    recomputing_room_bytes,
    room_bytes,
)
from autoplan.search.pipeline.whole import WholeCosts
from cost_models.critical_path import CriticalPath

Floats = npt.NDArray[np.float64]
_ROUNDING_BYTES = 1.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PricedRows:
    """Both objectives at a price of memory.

    Attributes:
        share, extra: bounds of all ranges.
        share_items, extra_items: bounds of the items alone, by rank and item.
    """

    share: RangeRows
    extra: RangeRows
    share_items: Floats
    extra_items: Floats

    def at(self, rank: int, first: int, stop: int, tables: Floats) -> float:
        """The bound of both objectives of one range together."""
        return sum(rows.at(rank, first, stop, tables) for rows in (self.share, self.extra))


@dataclass(frozen=True, kw_only=True)
class BoundRows:
    """Bounds of one configuration.

    Attributes:
        rooms, twice: by begin and end of ranges, see ``rooms_of`` and ``twice_of``.
        room: which of the rooms counts.
    """

    costs: WholeCosts
    rates: RankRates
    values: ItemValues
    rooms: Floats
    twice: Floats
    room: int = 0

    @cached_property
    def tables(self) -> Floats:
        """What the weights of rows are of: rooms, then what is read twice."""
        return np.concatenate([self.rooms, self.twice])

    def along(self, path: CriticalPath) -> BoundRows:
        """Bounds by one path alone."""
        return replace(self, rates=self.rates.along(path))

    @cached_property
    def recomputing(self) -> tuple[BoundRows, ...]:
        """Bounds where what blocks make again has a price, for ranges of few blocks. Parts behind
        the last one are looked at in the backward of blocks."""
        late = parts_behind(self.costs, self.values.model)
        values = replace(self.values, late=late)
        return tuple(
            replace(self, values=values, rates=self._passing(passing), room=number)
            for number, passing in enumerate(passing_of(self.costs), 1)
        )

    def _passing(self, passing: Passing) -> RankRates:
        share = 1 / passing.most_blocks
        let_go = share * passing.let_go_blocks
        return replace(self.rates, passing_share=share, let_go_share=let_go)

    def of(self, prices: Sequence[Price], pricer: ItemPricer) -> list[PricedRows]:
        """Bounds at prices of memory."""
        counting: list[Name] = [name for name in NAMES if self.rates.counts(name)]
        asked = [
            Wanted(rows=self._rates[name], byte_price_s=price_s)
            for name in counting
            for price_s in prices
        ]
        values = iter(self._values_of(asked, pricer))
        nothing = [np.zeros((len(self.rates.ranks), len(self.costs.is_block)))]
        share, extra = (
            [next(values) if name in counting else nothing for _ in prices] for name in NAMES
        )
        return [
            PricedRows(
                share=self._rows("share", price_s, of_share, pricer),
                extra=self._rows("extra", price_s, of_extra, pricer),
                share_items=np.min(of_share, axis=0),
                extra_items=np.min(of_extra, axis=0),
            )
            for price_s, of_share, of_extra in zip(prices, share, extra, strict=True)
        ]

    def without_price(
        self, share_items: Floats, extra_items: Floats, pricer: ItemPricer
    ) -> PricedRows:
        """Bounds of given items, by rank and item, where memory has no price."""
        return PricedRows(
            share=self._rows("share", 0.0, [share_items], pricer),
            extra=self._rows("extra", 0.0, [extra_items], pricer),
            share_items=share_items,
            extra_items=extra_items,
        )

    def held(self) -> RangeRows:
        """The fewest bytes that menus know of, less those that there are."""
        return self._held(of_blocks=True)

    def blocks_room_bytes(self, rank: int) -> float:
        """What there is at most for the blocks of a rank that has several stages."""
        cuts, _ = self.rates.row.cuts(len(self.costs.is_block))
        over = self._held(of_blocks=False).at(rank, cuts[rank], cuts[rank + 1], self.tables)
        return _ROUNDING_BYTES - over

    def _held(self, *, of_blocks: bool) -> RangeRows:
        """The fewest bytes of items, or of parts of the root alone, less those that there are."""
        root, blocks = (self.rates.bytes_held(of_blocks=each) for each in (False, True))
        rows = RateRows(seconds=root, byte=root), RateRows(seconds=blocks, byte=blocks)
        pricer = ItemPricer(costs=self.costs)
        (items,) = self._values_of([Wanted(rows=rows, byte_price_s=0.0)], pricer)
        if not of_blocks:
            items = [np.where(self.costs.is_block, 0.0, each) for each in items]
        return self._ranges(
            items, self._ends.leaving_bytes, 0.0, self._weights(blocks, root, pricer)
        )

    def _apart(self, name: Name, pricer: ItemPricer) -> tuple[Floats, Floats]:
        """Calls of every stage and messages between stages, by rank and end or begin of a range."""
        ends_s, begins_s = self._ends.sends_s(name)
        if self.costs.shared_s:
            _, blocks = self._rates[name]
            counted = [pricer.forward_weight(rates_of(row)) for row in blocks.seconds]
            ends_s = ends_s + self.costs.shared_s * np.array(counted)[:, None]
        return ends_s, begins_s

    @property
    def cases(self) -> int:
        """How many cases of ranges are told apart, as of ``RangeTables``."""
        return MODE_CASES if self.values.model.modes else 1

    def _values_of(self, wanted: Sequence[Wanted], pricer: ItemPricer) -> list[tuple[Floats, ...]]:
        """As of ``ItemValues``, in each mode that is told apart."""
        model = self.values.model
        found = [self.values.of(wanted, pricer, each) for each in model.modes or (model.menus,)]
        return list(zip(*found, strict=True))

    def _rows(
        self, name: Name, price_s: Price, items: Sequence[Floats], pricer: ItemPricer
    ) -> RangeRows:
        """What ranges cost: their items, what is apart from them, and memory."""
        apart_s = self._apart(name, pricer)
        root, blocks = (rows.at(price_s) for rows in self._rates[name])
        ends_s = apart_s[0] + blocks[:, [BYTE]] * self._ends.leaving_bytes
        return self._ranges(items, ends_s, apart_s[1], self._weights(blocks, root, pricer))

    def _ranges(
        self, items: Sequence[Floats], ends: Floats, begins: Floats | float, weights: Floats
    ) -> RangeRows:
        """Sums over items, and what is beside them.

        Args:
            items: by mode.
        """
        least = np.min(items, axis=0)
        rows = _summed(least, ends, begins, weights)
        if len(items) == 1:
            return rows
        again, above = (
            np.where(self.costs.is_block, items[1] - less, np.inf) for less in (items[0], least)
        )
        nothing = _summed(items[0], ends, begins, weights)
        return replace(rows, modes=ModeRows(nothing=nothing, again=again, above=above))

    def _weights(self, blocks: Floats, root: Floats, pricer: ItemPricer) -> Floats:
        """By rank, what each of ``tables`` counts: memory at its price, and parameters at theirs
        where one range can have several readers."""
        of_rooms, of_twice = (
            np.zeros((len(blocks), len(tables))) for tables in (self.rooms, self.twice)
        )
        of_rooms[:, self.room] = -blocks[:, BYTE]
        least, most = self.rates.row.cuts(len(self.costs.is_block))
        for number, (items, elements) in enumerate(self.costs.tied):
            for rank in np.flatnonzero(self.twice[number, least[:-1], most[1:]]):
                rates = rates_of(root[rank])
                of_twice[rank, number] = -self._twice_s(items, elements, rates, pricer)
        return np.concatenate([of_rooms, of_twice], axis=1)

    def _twice_s(
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


def rooms_of(costs: WholeCosts, values: ItemValues) -> Floats:
    """Of all ranges by begin and end, bytes for their items: first without what blocks make again,
    then with it for each of ``passing_of``."""
    room = room_bytes(costs, values.model, values.widest, values.late)
    again = [recomputing_room_bytes(costs, values.model, passing) for passing in passing_of(costs)]
    return np.array([room, *again])


def twice_of(costs: WholeCosts) -> Floats:
    """Of all ranges by begin and end, for each parameter that several parts of the root read, how
    many more of them than one there are."""
    ends = len(costs.is_block) + 1
    more = [readers_beyond_one(items, ends - 1) for items, _ in costs.tied]
    return np.array(more, dtype=np.float64).reshape(len(more), ends, ends)


def _summed(items: Floats, ends: Floats, begins: Floats | float, weights: Floats) -> RangeRows:
    """Sums over items, and what is beside them."""
    sums = np.concatenate([np.zeros((len(items), 1)), items.cumsum(axis=1)], axis=1)
    return RangeRows(ends=sums + ends, begins=begins - sums, weights=weights)
