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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autoplan.search.pipeline.item_prices import Elements, ItemPricer, ItemPrices, Rates
from autoplan.search.pipeline.objectives import Counted, RankObjective, Row, Weights, lengths
from autoplan.search.pipeline.whole import WholeCosts
from autoplan.search.regions.column import Menu
from cost_models.memory import STORED_BYTES

Floats = npt.NDArray[np.float64]
_CLOSE = 1e-9
_CLOSE_BELOW = 0.98
_APART = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """The items of a model for one configuration.

    Attributes:
        keys: region of each item.
        menus: of each region.
        elements: of each region.
    """

    keys: tuple[str, ...]
    menus: Mapping[str, Menu]
    elements: Mapping[str, Elements]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tables:
    """Arrays of shape (ranks, items + 1, items + 1): rank r with items i to j - 1; inf where no
    choice fits."""

    share: Floats
    extra: Floats


class Bounds:
    """Tables of one configuration, which rise with every price of memory that is tried."""

    def __init__(
        self, costs: WholeCosts, model: Model, objectives: tuple[RankObjective, ...]
    ) -> None:
        self._costs = costs
        self._model = model
        self._objectives = objectives
        self._row = Row(is_block=costs.is_block, shape=costs.config.shape)
        self._regions = tuple(dict.fromkeys(model.keys))
        self._region_of = np.array([self._regions.index(key) for key in model.keys])
        self._blocks = dict(zip(model.keys, costs.is_block, strict=True))
        count = len(model.keys) + 1
        shape = len(objectives), count, count
        self.share = np.full(shape, -np.inf)
        self.extra = np.full(shape, -np.inf)
        self._fits = self._fitting()
        self._watched = sorted({0, (len(objectives) - 1) // 2, len(objectives) - 1})
        self._tried: dict[float, Floats] = {}

    @property
    def head_s(self) -> float:
        """Beyond the tables: the largest gather that shows, where ranks have several stages."""
        if self._stages_per_rank == 1:
            return 0.0
        pricer = ItemPricer(costs=self._costs)
        return max(
            pricer.least_head_s(self._model.elements[region], is_block=self._blocks[region])
            for region in self._regions
        )

    def tables(self) -> Tables:
        """The bounds so far."""
        return Tables(
            share=np.where(self._fits, self.share, np.inf),
            extra=np.where(self._fits, self.extra, np.inf),
        )

    def add(self, byte_price_s: float, pricer: ItemPricer) -> None:
        """Raises the bounds by a price of memory: seconds of the step for a byte of a rank."""
        both = np.zeros(self.share[self._watched].shape)
        for name, table in (("share", self.share), ("extra", self.extra)):
            blocks, root = self._of_ranks(name, byte_price_s)
            if any(rate.forward or rate.backward_input for rate in (*blocks, *root)):
                values = self._ranges(self._item_values(blocks, root, pricer))
                values += self._apart(name, blocks, root)
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

    def rates(self, name: str, rank: int, byte_price_s: float, *, of_blocks: bool) -> Rates:
        """What counts in one objective of a rank at a price of memory for both together."""
        objective = self._objectives[rank]
        weights: Weights = getattr(objective, name)
        counted = self._counted(rank, weights, of_blocks=of_blocks)
        part = weights.backwards / (objective.share.backwards + objective.extra.backwards)
        byte = byte_price_s * part
        alone, ends_step = len(self._objectives) == 1, name == "share" and objective.ends_step
        return Rates(
            forward=counted.forward,
            backward_input=counted.backward_input,
            backward_weight=counted.backward_weight,
            head=float((name == "share") == alone and self._stages_per_rank == 1),
            tail=float(ends_step and (self._stages_per_rank == 1 or not of_blocks)),
            optimizer=float(ends_step),
            byte=byte,
            kept_byte=byte * self.held(rank, of_blocks=of_blocks),
        )

    def held(self, rank: int, *, of_blocks: bool) -> float:
        """Microbatches whose activations a rank holds, of its blocks or its parts of the root."""
        return self._row.mean(rank, self._objectives[rank].held, of_blocks=of_blocks)

    def _counted(self, rank: int, weights: Weights, *, of_blocks: bool) -> Counted:
        by_kind = zip(*weights.stages, strict=True)
        return Counted(*(self._row.mean(rank, of, of_blocks=of_blocks) for of in by_kind))

    def _of_ranks(self, name: str, byte_price_s: float) -> tuple[list[Rates], list[Rates]]:
        """Rates of all ranks, for blocks and for parts of the root."""
        blocks, root = (
            [
                self.rates(name, rank, byte_price_s, of_blocks=of_blocks)
                for rank in range(len(self._objectives))
            ]
            for of_blocks in (True, False)
        )
        return blocks, root

    @property
    def _stages_per_rank(self) -> int:
        return self._costs.config.stages_per_rank

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

    def prices(self, region: str, rates: Rates, pricer: ItemPricer) -> ItemPrices:
        """Prices of a region's items."""
        elements = self._model.elements[region]
        return pricer.prices(rates, elements, is_block=self._blocks[region])

    def _ranges(self, items: Floats) -> Floats:
        """Sums over all ranges of items, by rank."""
        ends = np.concatenate([np.zeros((len(items), 1)), items.cumsum(axis=1)], axis=1)
        return ends[:, None, :] - ends[:, :, None]

    def _apart(self, name: str, blocks: Sequence[Rates], root: Sequence[Rates]) -> Floats:
        """What a range costs beside its items: shared calls, messages between stages, memory."""
        costs, count = self._costs, len(self._model.keys) + 1
        room = costs.memory.limit_bytes - costs.memory.fixed_bytes - self._passing_bytes
        found = np.zeros((len(blocks), count, count))
        for rank, rate in enumerate(blocks):
            weights: Weights = getattr(self._objectives[rank], name)
            sent = self._sends(rank, weights)
            found[rank] = sent + rate.byte * (self.leaving_bytes(rank)[None, :] - room)
            found[rank] += rate.forward * costs.shared_s
        for items, elements in costs.tied:
            found -= self._twice(items, elements, root)
        return found

    @cached_property
    def _passing_bytes(self) -> Floats:
        """For each range of items, what passes at least: an operator at work, a gradient sent."""
        model, memory = self._model, self._costs.memory
        least = {key: menu.least_operator_bytes() for key, menu in model.menus.items()}
        working = [least[key] for key in model.keys]
        sent = [STORED_BYTES * model.elements[key].least_trained for key in model.keys]
        if memory.is_alone:
            sent = [0.0] * len(sent)
        return _largest(working) + _largest(sent)

    def leaving_bytes(self, rank: int) -> Floats:
        """For each end of a rank's range, what its stages hold of what they have sent on."""
        *between, last = self._objectives[rank].held
        leaving = [cut.forward_bytes for cut in self._costs.cuts]
        ends = np.array([0.0, *leaving, 0.0])
        return last * ends + (sum(between) * min(leaving) if between else 0.0)

    def _sends(self, rank: int, weights: Weights) -> Floats:
        """Messages from each possible end of a rank's range and back from each possible begin."""
        costs = self._costs
        there = [cut.forward_bytes for cut in costs.cuts]
        back = [cut.backward_bytes for cut in costs.cuts]
        stages = self._stages_per_rank
        if stages > 1:
            there, back = [min(there)] * len(there), [min(back)] * len(back)
        ahead, behind = costs.hops[rank], costs.hops[rank - 1]
        forward, backward = weights.forward_sends, weights.backward_sends
        ends = np.array([0.0, *(forward * ahead.seconds(nbytes) for nbytes in there), 0.0])
        begins = np.array([0.0, *(backward * behind.seconds(nbytes) for nbytes in back), 0.0])
        if stages > 1:
            ends[-1] = forward * ahead.seconds(there[-1])
            begins[0] = backward * behind.seconds(back[0])
        return ends[None, :] + begins[:, None]

    def _twice(self, items: tuple[int, ...], elements: float, rates: Sequence[Rates]) -> Floats:
        """What is counted once too often where a range has several readers of a parameter."""
        count = len(self._model.keys) + 1
        readers = np.zeros(count)
        for item in items:
            readers[item + 1 :] += 1
        more = np.maximum(readers[None, :] - readers[:, None] - 1, 0.0)
        prices = [
            self.prices(self._model.keys[items[0]], rate, ItemPricer(costs=self._costs)).prices
            for rate in rates
        ]
        return elements * more[None] * np.array([p.trained_elements for p in prices])[:, None, None]

    def _fitting(self) -> npt.NDArray[np.bool_]:
        """Where the fewest bytes that the menus know of fit."""
        pricer = ItemPricer(costs=self._costs)
        blocks, root = (
            [
                Rates(
                    forward=0.0, backward_input=0.0, backward_weight=0.0, head=0.0, tail=0.0,
                    optimizer=0.0, byte=1.0,
                    kept_byte=self.held(rank, of_blocks=of_blocks),
                )
                for rank in range(len(self._objectives))
            ]
            for of_blocks in (True, False)
        )  # fmt: skip
        leaving = np.array([self.leaving_bytes(rank) for rank in range(len(blocks))])
        least = self._ranges(self._item_values(blocks, root, pricer)) + leaving[:, None, :]
        for items, elements in self._costs.tied:
            least -= self._twice(items, elements, root)
        room = self._costs.memory.limit_bytes - self._costs.memory.fixed_bytes
        room = room - self._passing_bytes
        ends = np.arange(len(self._model.keys) + 1)
        allowed = lengths(len(self._model.keys), self._costs.config.shape)
        is_allowed = np.isin(ends[None, :] - ends[:, None], allowed)
        return (least <= room[None]) & is_allowed[None]


def _largest(values: Sequence[float]) -> Floats:
    """The largest value of every range of items."""
    count = len(values) + 1
    found = np.zeros((count, count))
    for first in range(count - 1):
        found[first, first + 1 :] = np.maximum.accumulate(values[first:])
    return found


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
