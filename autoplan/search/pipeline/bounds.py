"""Lower bounds of every rank's objectives over every range of items, as tables for ``partition``.

For a rank r, a range of items (i, j] and any price of memory p >= 0, Lagrangian relaxation bounds

    objective >= sum over items of the least value at the prices
                 - p * (limit - what the rank holds whatever its columns are)

and the largest over the prices tried stands in the table. Least values are concave in the prices,
so menus are asked for a few ranks only (anchors); where a rank's prices lie between those of two
anchors, interpolation bounds them from below.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoplan.search.pipeline.item_prices import ItemPricer, ItemPrices, Rates
from autoplan.search.pipeline.model import Model
from autoplan.search.pipeline.range_ends import RangeEnds, readers_beyond_one
from autoplan.search.pipeline.rank_rates import RankRates
from autoplan.search.pipeline.room import room_bytes
from autoplan.search.pipeline.whole import WholeCosts

Floats = npt.NDArray[np.float64]
_CLOSE = 1e-9
_CLOSE_BELOW = 0.98
_APART = 0.95
_ROUNDING_BYTES = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Tables:
    """Arrays of shape (ranks, items + 1, items + 1): rank r with items i to j - 1; inf where no
    choice fits."""

    share: Floats
    extra: Floats


class Bounds:
    """Tables of one configuration, which rise with every price of memory that is tried."""

    def __init__(self, costs: WholeCosts, model: Model, rates: RankRates) -> None:
        self.rates = rates
        self.ends = RangeEnds(costs=costs, rates=rates)
        self._costs = costs
        self._model = model
        self._regions = tuple(dict.fromkeys(model.keys))
        self._region_of = np.array([self._regions.index(key) for key in model.keys])
        self._blocks = dict(zip(model.keys, costs.is_block, strict=True))
        count = len(model.keys) + 1
        shape = len(rates.ranks), count, count
        self._share = np.full(shape, -np.inf)
        self._extra = np.full(shape, -np.inf)
        self._room_bytes = room_bytes(costs, model)
        self._fits = self._fitting()
        self._watched = sorted({0, rates.ranks[-1] // 2, rates.ranks[-1]})
        self._tried: dict[float, Floats] = {}

    @property
    def head_s(self) -> float:
        """Beyond the tables: the largest gather that shows, where ranks have several stages."""
        if self.rates.stages_per_rank == 1:
            return 0.0
        pricer = ItemPricer(costs=self._costs)
        return max(
            pricer.least_head_s(self._model.elements[region], is_block=self._blocks[region])
            for region in self._regions
        )

    def forget(self) -> None:
        """Frees the tables, when no bound is asked any more."""
        self._share = self._extra = np.zeros((0, 0, 0))
        self._tried.clear()

    def tables(self) -> Tables:
        """The bounds so far."""
        return Tables(
            share=np.where(self._fits, self._share, np.inf),
            extra=np.where(self._fits, self._extra, np.inf),
        )

    def add(self, byte_price_s: float, pricer: ItemPricer) -> None:
        """Raises the bounds by a price of memory: seconds of the step for a byte of a rank."""
        both = np.zeros(self._share[self._watched].shape)
        for name, table in (("share", self._share), ("extra", self._extra)):
            blocks, root = (
                self.rates.of_ranks(name, byte_price_s, of_blocks=of_blocks)
                for of_blocks in (True, False)
            )
            if any(rate.forward or rate.backward_input for rate in (*blocks, *root)):
                values = self._ranges(self._item_values(blocks, root, pricer))
                values += self._apart(name, blocks, root, pricer)
                np.maximum(table, values, out=table)
                both += values[self._watched]
            else:
                np.maximum(table, 0.0, out=table)
        self._tried[byte_price_s] = both

    def near(self, cuts: Sequence[int]) -> list[float]:
        """Prices between that which bounds a rank best with given cuts and its neighbours, for a
        few ranks: the bound is concave in the price, so it can be higher there."""
        known = sorted(self._tried)
        found: dict[float, None] = {}
        for number, rank in enumerate(self._watched):
            cell = number, cuts[rank], cuts[rank + 1]
            best = max(range(len(known)), key=lambda at: self._tried[known[at]][cell])
            around = known[max(0, best - 1) : best + 2]
            for low, high in itertools.pairwise(around):
                if low < _APART * high:
                    found[(low + high) / 2] = None
        return list(found)

    def prices(self, region: str, rates: Rates, pricer: ItemPricer) -> ItemPrices:
        """Prices of a region's items."""
        elements = self._model.elements[region]
        return pricer.prices(rates, elements, is_block=self._blocks[region])

    def _item_values(
        self, blocks: Sequence[Rates], root: Sequence[Rates], pricer: ItemPricer
    ) -> Floats:
        """Least values by rank and item."""
        by_region = np.zeros((len(blocks), len(self._regions)))
        for rates, of_blocks in ((blocks, True), (root, False)):
            regions = [r for r, key in enumerate(self._regions) if self._blocks[key] == of_blocks]
            anchors, mix = anchored(rates)
            values = [
                [self._least(self._regions[region], rates[rank], pricer) for region in regions]
                for rank in anchors
            ]
            by_region[:, regions] = mix @ np.array(values).reshape(len(anchors), len(regions))
        return by_region[:, self._region_of]

    def _least(self, region: str, rates: Rates, pricer: ItemPricer) -> float:
        at = self.prices(region, rates, pricer)
        return self._model.menus[region].least(at.prices).value + at.fixed

    def _ranges(self, items: Floats) -> Floats:
        """Sums over all ranges of items, by rank."""
        ends = np.concatenate([np.zeros((len(items), 1)), items.cumsum(axis=1)], axis=1)
        return ends[:, None, :] - ends[:, :, None]

    def _apart(
        self, name: str, blocks: Sequence[Rates], root: Sequence[Rates], pricer: ItemPricer
    ) -> Floats:
        """What a range costs beside its items: shared calls, messages between stages, memory."""
        byte_s = np.array([rate.byte for rate in blocks])[:, None, None]
        counted = np.array([pricer.forward_weight(rate) for rate in blocks])
        shared_s = self._costs.shared_s * counted
        found = self.ends.sends_s(name) + shared_s[:, None, None]
        if byte_s.any():
            found = found + byte_s * (self.ends.leaving_bytes[:, None, :] - self._room_bytes[None])
        return found - self._twice(root)

    def _twice(self, root: Sequence[Rates]) -> Floats | float:
        """What is counted once too often where a range has several readers of a parameter."""
        pricer, found = ItemPricer(costs=self._costs), 0.0
        for items, elements in self._costs.tied:
            key = self._model.keys[items[0]]
            element_s = [self.prices(key, rate, pricer).prices.trained_elements for rate in root]
            more = readers_beyond_one(items, len(self._model.keys))
            found = found + elements * more[None] * np.array(element_s)[:, None, None]
        return found

    def _fitting(self) -> npt.NDArray[np.bool_]:
        """Where the fewest bytes that the menus know of fit."""
        pricer = ItemPricer(costs=self._costs)
        blocks, root = (
            self.rates.bytes_of_ranks(of_blocks=of_blocks) for of_blocks in (True, False)
        )
        least = self._ranges(self._item_values(blocks, root, pricer)) - self._twice(root)
        least = least + self.ends.leaving_bytes[:, None, :]
        ends = np.arange(len(self._model.keys) + 1)
        counts = ends[None, :] - ends[:, None]
        allowed = [np.isin(counts, self.rates.row.lengths(rank)) for rank in self.rates.ranks]
        return (least <= self._room_bytes[None] + _ROUNDING_BYTES) & np.array(allowed)


def anchored(rates: Sequence[Rates]) -> tuple[list[int], Floats]:
    """A few ranks, and a matrix that gives the prices of all ranks from theirs, never above."""
    rows = np.array([_row(rate) for rate in rates])
    anchors = [0]
    while anchors[-1] < len(rates) - 1:
        first = anchors[-1]
        reach = len(rates) - 1
        while not _is_between(rows, first, reach):
            reach -= 1
        anchors.append(reach)
    mix = np.zeros((len(rates), len(anchors)))
    for number, rank in enumerate(anchors):
        mix[rank, number] = 1.0
    for number, (first, last) in enumerate(itertools.pairwise(anchors)):
        for rank in range(first + 1, last):
            share = (rank - first) / (last - first)
            mix[rank, number : number + 2] = 1 - share, share
    return anchors, mix


def _row(rate: Rates) -> tuple[float, ...]:
    return (
        rate.forward, rate.backward_input, rate.backward_weight, rate.head, rate.tail,
        rate.optimizer, rate.byte, rate.kept_byte,
    )  # fmt: skip


def _is_between(rows: Floats, first: int, last: int) -> bool:
    """Whether all ranks between two have at least the prices on the line between them."""
    if last - first < 2:
        return True
    share = np.arange(1, last - first)[:, None] / (last - first)
    line = (1 - share) * rows[first] + share * rows[last]
    inside = rows[first + 1 : last]
    slack = _CLOSE * np.abs(line)
    return bool((line <= inside + slack).all() and (line >= _CLOSE_BELOW * inside - slack).all())
