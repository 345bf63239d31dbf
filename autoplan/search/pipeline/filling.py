"""One rank's items with columns: the fastest that its memory holds, and what a byte is worth there.

Columns come from menus, asked at the prices of memory that were tried; a rank takes from all that
were found for any rank. Where a rank has several stages, blocks at one place of them have one
column (``objectives``).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from autoplan.search.pipeline.bounds import Bounds
from autoplan.search.pipeline.family import Boundary
from autoplan.search.pipeline.item_prices import ItemPricer, Rates, summed
from autoplan.search.pipeline.loads import Unit
from autoplan.search.pipeline.mixing import Group, Mix, fill, relaxed
from autoplan.search.pipeline.model import Model
from autoplan.search.pipeline.range_ends import RangeEnds
from autoplan.search.pipeline.rank_memory import IN_FLIGHT_UNITS
from autoplan.search.pipeline.whole import WholeCosts
from autoplan.search.regions.column import Column, Prices, value_of

_FEW_BYTES = 2**16


@dataclass(frozen=True, kw_only=True, slots=True)
class Filling:
    """The columns of a rank's items, in order, or none where they do not fit.

    ``price_s`` is what a byte more would save, in seconds of the step; that of the relaxed problem,
    or so that all bytes of a device are worth a step where nothing fits.
    """

    columns: tuple[Column, ...]
    price_s: float


class _Slot(NamedTuple):
    """Items of one region, and if a rank has several stages, at one place of them."""

    key: str
    place: int | None


class Filler:
    """Fills the ranks of one configuration, whose items meet in given placements."""

    def __init__(self, costs: WholeCosts, model: Model, bounds: Bounds, boundary: Boundary) -> None:
        self.costs = costs
        self.boundary = boundary
        self._model = model
        self._bounds = bounds
        self._ends = RangeEnds(costs=costs, rates=bounds.rates)
        self._pricer = ItemPricer(costs=costs)
        self._row = bounds.rates.row
        self._is_block = dict(zip(model.keys, costs.is_block, strict=True))
        self._columns: dict[str, dict[Column, None]] = {key: {} for key in model.menus}
        self._has_leanest = False
        self._filled: dict[tuple[int, int, int, float], Filling] = {}
        self.add(0.0)
        self._dear_s = self._longest_s() / costs.memory.limit_bytes
        self.add(self._dear_s)

    def follow(self, pricer: ItemPricer) -> None:
        """Judges messages from here on by another side of what shows of them."""
        self._pricer = replace(pricer, costs=self.costs)
        self._filled.clear()

    def add(self, price_s: float) -> None:
        """Looks for columns at a price of memory, as the first, the middle and the last rank see
        it."""
        self._filled.clear()
        for key, _, prices in self._asked(price_s):
            self._columns[key][self._model.menus[key].least(prices).column] = None

    def _add_leanest(self) -> None:
        """Looks for columns at a price at which few bytes are worth more than a step, with and
        without those that pass."""
        self._has_leanest = True
        self._filled.clear()
        for key, rates, prices in self._asked(self._longest_s() / _FEW_BYTES):
            for recomputed_byte in (0.0, rates.byte):
                priced = replace(prices, recomputed_bytes=recomputed_byte)
                self._columns[key][self._model.menus[key].least(priced).column] = None

    def _asked(self, price_s: float) -> Iterator[tuple[str, Rates, Prices]]:
        last = self.costs.config.pp - 1
        for rank in sorted({0, last // 2, last}):
            for key in self._model.menus:
                rates = self._rates(rank, price_s, key)
                yield key, rates, self._bounds.prices(key, rates, self._pricer).prices

    def add_alike(self, rank: int, first: int, stop: int) -> None:
        """Looks for the column with which the blocks of a rank, which all run alike, are fastest
        where they fit beside the leanest ways of what else it has."""
        slots, memory = Counter(self._slots(rank, first, stop)), self.costs.memory
        beside, room_bytes = self._beside_bytes(first, stop), self._room(rank, first, stop)
        for slot in (slot for slot in slots if not self._is_block[slot.key]):
            group = self._group(rank, slot, slots[slot], beside)
            room_bytes -= group.count * float(group.held_bytes.min())
        ((key, count),) = ((slot.key, n) for slot, n in slots.items() if self._is_block[slot.key])
        weights = Prices(
            forward_s=0.0,
            backward_input_s=0.0,
            backward_weight_s=0.0,
            kept_bytes=count * self._bounds.rates.held(rank, of_blocks=True),
            recomputed_bytes=1.0,
            trained_elements=count * memory.held_per_trained,
            frozen_elements=count * memory.held_per_frozen,
        )
        prices = self._bounds.prices(key, self._rates(rank, 0.0, key), self._pricer).prices
        room_bytes -= beside[key] + self._least(key, lambda column: column.operator_bytes)
        found = self._model.menus[key].within(prices, weights, room_bytes)
        if found.column is not None:
            self._columns[key][found.column] = None
            self._filled.clear()

    def fill(self, rank: int, first: int, stop: int, tighter_bytes: float = 0.0) -> Filling:
        """The columns of a rank that has the items from ``first`` up to and without ``stop``, of
        those that were found so far."""
        key = rank, first, stop, tighter_bytes
        if key not in self._filled:
            self._filled[key] = self._fill(*key)
        return self._filled[key]

    def _fill(self, rank: int, first: int, stop: int, tighter_bytes: float) -> Filling:
        slots = self._slots(rank, first, stop)
        counts = Counter(slots)
        beside = self._beside_bytes(first, stop)
        groups = [self._group(rank, slot, count, beside) for slot, count in counts.items()]
        limit_bytes = self._room(rank, first, stop) - tighter_bytes
        best, loose = fill(groups, limit_bytes), relaxed(groups, limit_bytes)
        if best is None and not self._has_leanest:
            self._add_leanest()
            return self._fill(rank, first, stop, tighter_bytes)
        if best is None:
            return Filling(columns=(), price_s=self._dear_s)
        columns = self._dealt(counts, best)
        return Filling(
            columns=tuple(columns[slot].pop() for slot in slots),
            price_s=loose.byte_price_s if loose else 0.0,
        )

    def leanest(self, first: int, stop: int) -> tuple[Column, ...]:
        """The columns that take least memory of those known, for the items of a rank."""
        if not self._has_leanest:
            self._add_leanest()
        memory, found = self.costs.memory, {}
        for key in dict.fromkeys(self._model.keys[first:stop]):
            found[key] = min(
                self._columns[key],
                key=lambda column: (
                    column.kept_bytes
                    + memory.held_per_trained * column.trained_elements
                    + memory.held_per_frozen * column.frozen_elements
                ),
            )
        return tuple(found[key] for key in self._model.keys[first:stop])

    def _slots(self, rank: int, first: int, stop: int) -> list[_Slot]:
        """What each item of a rank has in common with those that may be filled together."""
        keys = self._model.keys[first:stop]
        if self.costs.config.stages_per_rank == 1:
            return [_Slot(key, None) for key in keys]
        places = self._row.places(rank)
        return [_Slot(key, place) for key, (_, place) in zip(keys, places, strict=True)]

    def _rates(self, rank: int, price_s: float, key: str) -> Rates:
        of_blocks = self._is_block[key]
        return summed(
            self._bounds.rates.rates(name, rank, price_s, of_blocks=of_blocks)
            for name in ("share", "extra")
        )

    def _group(self, rank: int, slot: _Slot, count: int, beside: Mapping[str, float]) -> Group:
        key, memory = slot.key, self.costs.memory
        columns = tuple(self._columns[key])
        held = self._bounds.rates.held(rank, of_blocks=self._is_block[key])
        prices = self._bounds.prices(key, self._rates(rank, 0.0, key), self._pricer).prices
        at_once = 1 if slot.place is None else count
        is_late, trained_bytes = key in self._bounds.late, memory.held_per_trained
        if is_late:
            trained_bytes += memory.trained.gradients_made
            held -= self.costs.config.stages_per_rank == 1
        return Group(
            count=count // at_once,
            cost_s=at_once * np.array([value_of(column, prices) for column in columns]),
            held_bytes=at_once
            * np.array(
                [
                    held * column.kept_bytes
                    + trained_bytes * column.trained_elements
                    + memory.held_per_frozen * column.frozen_elements
                    for column in columns
                ]
            ),
            passing_bytes=np.array(
                [
                    max(0.0, column.passing_bytes + beside[key] + self._reduced(key, column))
                    for column in columns
                ]
                if key in beside
                else [0.0] * len(columns)
            ),
        )

    def _reduced(self, key: str, column: Column) -> float:
        """Gradients that stand beside what a block with this column holds."""
        if not self._is_block[key]:
            return 0.0
        blocks = sum(self.costs.is_block)
        return self.costs.memory.reduced_bytes(replace(_unit(column), count=blocks))

    def _beside_bytes(self, first: int, stop: int) -> Mapping[str, float]:
        """What there is beside what passes in each region, at the moment when it does: in the
        backward of blocks gradients, and what lies behind them has let go of what it kept.

        Late regions behind all blocks are left out: what passes in them adds to nothing held."""
        keys, blocks = self._model.keys[first:stop], self.costs.is_block[first:stop]
        memory = self.costs.memory
        last = max((number for number, block in enumerate(blocks) if block), default=-1)
        behind = [key for key in keys[last + 1 :] if key not in self._bounds.late]
        _, sent = self._units(first, stop, memory.least_gradient_bytes)
        beside = max(sent, default=0.0)
        for key in behind:
            trained = self._least(key, lambda column: column.trained_elements)
            beside += memory.trained.gradients_made * trained
            if self._row.shape.stages_per_rank == 1:
                beside -= self._least(key, lambda column: column.kept_bytes)
        found = dict.fromkeys(keys[: last + 1], beside)
        return found | dict.fromkeys(behind, 0.0)

    def _least(self, key: str, amount: Callable[[Column], float]) -> float:
        return min(map(amount, self._columns[key]))

    def _room(self, rank: int, first: int, stop: int) -> float:
        """Bytes for the items of a rank: less what it holds whatever their columns are.

        A plan that takes more is filled again.
        """
        memory = self.costs.memory
        room = memory.limit_bytes - memory.fixed_bytes
        room -= float(self._ends.leaving_bytes[rank, stop])
        room += memory.held_per_trained * self._twice(first, stop).trained_elements
        room -= sum(map(memory.held_bytes, self._apart(first, stop)))
        root, blocks = self._units(first, stop, memory.gathered_bytes)
        return room - root - sum(heapq.nlargest(IN_FLIGHT_UNITS, blocks))

    def _twice(self, first: int, stop: int) -> Unit:
        """What several parts of the root read in a range, beyond once."""
        elements = 0.0
        for items, of_each in self.costs.tied:
            readers = sum(first <= item < stop for item in items)
            elements += of_each * max(0, readers - 1)
        return Unit(trained_elements=elements, frozen_elements=0.0, count=1)

    def _apart(self, first: int, stop: int) -> list[Unit]:
        """What blocks of a range read and other items too."""
        return [one.unit for one in self.costs.apart_between(first, stop)]

    def _units(
        self, first: int, stop: int, nbytes: Callable[[Unit], float]
    ) -> tuple[float, list[float]]:
        """What the root and each block of a range take at least of what passes."""
        keys, is_block = self._model.keys[first:stop], self.costs.is_block[first:stop]
        least = {
            key: min(nbytes(_unit(column)) for column in self._columns[key])
            for key in dict.fromkeys(keys)
        }
        root = sum(least[key] for key, block in zip(keys, is_block, strict=True) if not block)
        root += sum(map(nbytes, self._apart(first, stop))) - nbytes(self._twice(first, stop))
        return root, [least[key] for key, block in zip(keys, is_block, strict=True) if block]

    def _longest_s(self) -> float:
        """More than the seconds of a step that count for any rank."""
        longest = max(
            value_of(
                column, self._bounds.prices(key, self._rates(0, 0.0, key), self._pricer).prices
            )
            for key, columns in self._columns.items()
            for column in columns
        )
        return longest * len(self._model.keys)

    def _dealt(self, counts: Mapping[_Slot, int], mix: Mix) -> dict[_Slot, list[Column]]:
        """Columns of the items of each slot, those that keep most first: they go to the end."""
        found = {}
        for (slot, total), of_column in zip(counts.items(), mix.counts, strict=True):
            taken = [
                column
                for column, count in zip(self._columns[slot.key], of_column, strict=True)
                for _ in range(count * total // sum(of_column))
            ]
            found[slot] = sorted(taken, key=lambda column: -column.kept_bytes)
        return found


def _unit(column: Column) -> Unit:
    return Unit(
        trained_elements=column.trained_elements,
        frozen_elements=column.frozen_elements,
        count=1,
        kept_bytes=column.kept_bytes,
    )
