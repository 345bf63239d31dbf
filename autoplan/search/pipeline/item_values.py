"""Least values of a model's items in objectives of all ranks, asked of menus for few of them.

Menus are asked for the regions that a rank can have at all: what lies at the ends of a model is on
the first and the last rank alone. All that a menu is asked at a time it is asked at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autoplan.search.pipeline.item_prices import ItemPricer, ItemPrices, Rates
from autoplan.search.pipeline.model import Model
from autoplan.search.pipeline.objectives import Row
from autoplan.search.pipeline.rank_rates import Price, RateRows, rates_of
from autoplan.search.pipeline.room import widest_part
from autoplan.search.regions.column import Menu, Prices

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Wanted:
    """One objective of all ranks at a price of memory.

    Attributes:
        rows: rates of parts of the root and of blocks, at any price.
    """

    rows: tuple[RateRows, RateRows]
    byte_price_s: Price


@dataclass(frozen=True, kw_only=True)
class ItemValues:
    """Asks the menus of a model for the items of a row.

    Attributes:
        late: parts of the root that are looked at in the backward of blocks (``room``).
    """

    model: Model
    row: Row
    late: frozenset[str] = frozenset()

    def of(
        self,
        wanted: Sequence[Wanted],
        pricer: ItemPricer,
        menus: Mapping[str, Menu] | None = None,
    ) -> list[Floats]:
        """Bounds of the items' values by rank and item, never above the least, for each objective.

        Items that a rank cannot have count there as on the nearest rank that can.

        Args:
            menus: those of the model, if not given.
        """
        menus = menus or self.model.menus
        found = [np.zeros((len(self._ranks), len(self._regions))) for _ in wanted]
        for number, (key, ranks) in enumerate(self._regions.items()):
            of_blocks = self.is_block[key]
            mixes, asked = [], []
            for one in wanted:
                rows = one.rows[of_blocks]
                anchors, mix = rows.anchored(ranks, one.byte_price_s)
                at = rows.at(one.byte_price_s)
                asked.append([self.prices(key, rates_of(at[rank]), pricer) for rank in anchors])
                mixes.append(mix)
            values = iter(_least_values(menus[key], [p for row in asked for p in row]))
            for into, mix, row in zip(found, mixes, asked, strict=True):
                into[:, number] = mix @ np.array([next(values) for _ in row])
        return [values[:, self._region_of] for values in found]

    def prices(self, region: str, rates: Rates, pricer: ItemPricer) -> ItemPrices:
        """Prices of a region's items."""
        return pricer.prices(
            rates,
            self.model.elements[region],
            is_block=self.is_block[region],
            is_widest=region == self.widest,
            is_late=region in self.late,
        )

    @cached_property
    def widest(self) -> str | None:
        """The region whose operator at work has a price."""
        return None if self.late else widest_part(self.model, self.row.is_block)

    @cached_property
    def is_block(self) -> Mapping[str, bool]:
        """Of each region."""
        return dict(zip(self.model.keys, self.row.is_block, strict=True))

    @property
    def _ranks(self) -> range:
        return range(self.row.shape.ranks)

    @cached_property
    def _region_of(self) -> list[int]:
        """The number of each item's region."""
        numbers = {key: number for number, key in enumerate(self._regions)}
        return [numbers[key] for key in self.model.keys]

    @cached_property
    def _regions(self) -> Mapping[str, range]:
        """The ranks that can have an item of each region."""
        least, most = self.row.cuts(len(self.model.keys))
        found: dict[str, range] = {}
        for item, key in enumerate(self.model.keys):
            first = int(np.searchsorted(most[1:], item, side="right"))
            last = int(np.searchsorted(least[:-1], item, side="right")) - 1
            known = found.get(key, range(first, last + 1))
            found[key] = range(min(first, known.start), max(last + 1, known.stop))
        return found


def _least_values(menu: Menu, asked: Sequence[ItemPrices]) -> list[float]:
    """Bounds of an item's values, from least values at prices for one second of its backward: many
    configurations ask for the same."""
    scales = [one.prices.backward_input_s or one.prices.kept_bytes or 1.0 for one in asked]
    scaled = [_per(one.prices, scale) for one, scale in zip(asked, scales, strict=True)]
    return [
        scale * least + one.fixed
        for one, scale, least in zip(asked, scales, menu.least_values(scaled), strict=True)
    ]


def _per(prices: Prices, unit: float) -> Prices:
    return Prices(
        forward_s=prices.forward_s / unit,
        backward_input_s=prices.backward_input_s / unit,
        backward_weight_s=prices.backward_weight_s / unit,
        kept_bytes=prices.kept_bytes / unit,
        recomputed_bytes=prices.recomputed_bytes / unit,
        working_bytes=prices.working_bytes / unit,
        trained_elements=prices.trained_elements / unit,
        frozen_elements=prices.frozen_elements / unit,
    )
