"""Whether the blocks of a model can fit the ranks of a configuration at all, in microseconds.

A block holds at least ``min over columns of (kept bytes x microbatches held + weights)``, which is
concave in the microbatches: between values at a few of them, which serve all configurations of a
family, interpolation is never above it. While the optimizer steps, its weights and what passes of
them are there. Each rank holds no more blocks than go into its memory at either moment; all of them
together have to hold all blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autoplan.search.pipeline.family import Family
from autoplan.search.pipeline.loads import Unit
from autoplan.search.pipeline.rank_memory import ROUNDING_BYTES, RankMemory
from autoplan.search.pipeline.rank_rates import RankRates
from autoplan.search.regions.column import Menu, Prices

Floats = npt.NDArray[np.float64]
_STEP = math.log(1.2)


@dataclass(frozen=True, kw_only=True)
class QuickRoom:
    """What no configuration of one family can do without."""

    family: Family

    def fits(self, rates: RankRates, memory: RankMemory) -> bool:
        """False where no plan fits; no more is known of others.

        Args:
            rates: of the configuration's schedule.
            memory: of its ranks.
        """
        if not self._blocks:
            return True
        held = rates.all_held(of_blocks=True)
        least = np.min([self._least_bytes(key, held, memory) for key in self._blocks], axis=0)
        most = (self._room_bytes(memory) + ROUNDING_BYTES) // least
        most = np.minimum(most, self._most_stepped(memory))
        total = sum(self.family.counts[key] for key in self._blocks)
        return bool(most.sum() >= total and (most >= rates.row.fewest_blocks).all())

    def _most_stepped(self, memory: RankMemory) -> float:
        """How many blocks a rank can have at most while its optimizer steps."""
        units = [self.family.elements[key].least for key in self._blocks]
        held = min(map(memory.held_bytes, units))
        passing = min(map(memory.passing_in_step_bytes, units))
        room = memory.limit_bytes - memory.fixed_bytes + ROUNDING_BYTES
        if not held:
            return math.inf
        return max(room // (held + passing), (room - memory.most_step_bytes) // held)

    def _room_bytes(self, memory: RankMemory) -> float:
        """What a rank has for its blocks while their backward runs."""
        room = memory.limit_bytes - memory.fixed_bytes - self._working_bytes
        return room - memory.least_gradient_bytes(self._least_unit)

    def _least_bytes(self, key: str, held: Floats, memory: RankMemory) -> Floats:
        """The fewest that a block holds, or less, by microbatches held."""
        frozen = memory.held_per_frozen if self.family.elements[key].frozen else 0.0
        trained = memory.held_per_trained
        wanted = held / trained
        first, last = (math.floor(math.log(of) / _STEP) for of in (wanted.min(), wanted.max()))
        at = [math.exp(_STEP * number) for number in range(first, last + 2)]
        values = _least_values(self.family.free[key], at, frozen / trained)
        return trained * np.interp(wanted, at, values)

    @cached_property
    def _blocks(self) -> list[str]:
        """Regions that are blocks."""
        items = zip(self.family.keys, self.family.menus.stack.items, strict=True)
        return list(dict.fromkeys(key for key, item in items if item.kind))

    @cached_property
    def _working_bytes(self) -> float:
        return min(self.family.free[key].least_operator_bytes() for key in self._blocks)

    @cached_property
    def _least_unit(self) -> Unit:
        least = min(self.family.elements[key].least_trained for key in self._blocks)
        return Unit(trained_elements=least, frozen_elements=0.0, count=1)


def _least_values(menu: Menu, kept: Sequence[float], frozen: float) -> Floats:
    """Of trained elements, and of what is kept and of frozen elements at their prices."""
    return menu.least_values(
        [
            Prices(
                forward_s=0.0,
                backward_input_s=0.0,
                backward_weight_s=0.0,
                kept_bytes=each,
                trained_elements=1.0,
                frozen_elements=frozen,
            )
            for each in kept
        ]
    )
