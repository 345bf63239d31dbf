"""Bounds of ranks whose blocks all run alike: with one column that fits.

A price of memory bounds them by the best mixture of columns, which several blocks may have, but not
where a rank has one block in each of several stages. There the least value is that of the columns
which alone fit, times the blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoplan.search.pipeline.bound_rows import BoundRows, PricedRows
from autoplan.search.pipeline.item_prices import ItemPricer
from autoplan.search.pipeline.rank_rates import rates_of
from autoplan.search.pipeline.room import passing_of


def alike_rows(rows: BoundRows, ranks: Sequence[int], pricer: ItemPricer) -> PricedRows:
    """Bounds without a price of memory, where the blocks of some ranks have one column.

    Args:
        rows: of the same objectives, of which only ``share`` counts any second.
        ranks: each has several stages, and blocks at one place of them (``Row.is_alike``).
    """
    (free,) = rows.of([0.0], pricer)
    items, is_block = free.share_items.copy(), np.array(rows.costs.is_block)
    for rank in ranks:
        items[rank, is_block] = np.maximum(items[rank, is_block], _block_s(rows, rank, pricer))
    return rows.without_price(items, free.extra_items, pricer)


def _block_s(rows: BoundRows, rank: int, pricer: ItemPricer) -> float:
    """What a block of a rank counts at least."""
    of_blocks = zip(rows.values.model.keys, rows.costs.is_block, strict=True)
    (key,) = {key for key, is_block in of_blocks if is_block}
    count = int(rows.rates.row.fewest_blocks[rank])
    of_memory = _at_fullest(rows, count)
    weights = of_memory.values.prices(
        key,
        rates_of(of_memory.rates.bytes_held(of_blocks=True)[rank]),
        ItemPricer(costs=rows.costs),
    )
    asked = rows.values.prices(
        key, rates_of(rows.rates.rows("share", of_blocks=True).seconds[rank]), pricer
    )
    limit_bytes = of_memory.blocks_room_bytes(rank) / count
    found = rows.values.model.menus[key].within(asked.prices, weights.prices, limit_bytes)
    return found.bound + asked.fixed


def _at_fullest(rows: BoundRows, blocks: int) -> BoundRows:
    """Bounds at the moment at which most passes: where what a block makes again counts, if they are
    for as many blocks."""
    pairs = zip(passing_of(rows.costs), rows.recomputing, strict=True)
    return next((each for passing, each in pairs if blocks <= passing.most_blocks), rows)
