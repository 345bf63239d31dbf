"""What counts in the objectives of every rank of a configuration, at any price of memory.

Rates of all ranks are rows of arrays, a column for each rate (``RATES``); they are linear in the
price of memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from autoplan.search.pipeline.anchors import anchored
from autoplan.search.pipeline.item_prices import Rates
from autoplan.search.pipeline.objectives import RankObjective, Row, Weights, along
from cost_models.critical_path import CriticalPath

Floats = npt.NDArray[np.float64]
Name = Literal["share", "extra"]
NAMES: tuple[Name, Name] = ("share", "extra")
Price = float | Floats
"""Of memory: seconds of the step for a byte of a rank, of every rank the same or its own."""
Anchors = tuple[list[int], Floats]

RATES = tuple(rate.name for rate in fields(Rates))
"""The rates, in the order of columns."""

BYTE, _KEPT_BYTE = RATES.index("byte"), RATES.index("kept_byte")
_PASSING_BYTE = RATES.index("passing_byte")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RateRows:
    """Rates of all ranks as a price of memory makes them; arrays of shape (ranks, rates).

    Attributes:
        seconds: what counts whatever the price.
        byte: what counts for one second a byte.
    """

    seconds: Floats
    byte: Floats
    _anchored: dict[tuple[range, bool], Anchors] = field(default_factory=dict)

    def at(self, byte_price_s: Price) -> Floats:
        """The rates at a price."""
        return self.seconds + np.reshape(byte_price_s, (-1, 1)) * self.byte

    def anchored(self, ranks: range, byte_price_s: Price) -> Anchors:
        """Few of some ranks, and what makes bounds for all ranks of bounds for them; those beside
        count as the nearest."""
        if not isinstance(byte_price_s, float):
            return _anchored(self.at(byte_price_s), ranks)
        key = ranks, byte_price_s > 0
        if key not in self._anchored:
            counted = [self.seconds, self.byte] if byte_price_s > 0 else [self.seconds]
            self._anchored[key] = _anchored(np.hstack(counted), ranks)
        return self._anchored[key]


@dataclass(frozen=True, kw_only=True)
class RankRates:
    """Rates of all ranks.

    Attributes:
        objectives: of each rank.
        row: the items that they run.
        passing_share: of what a block makes again, how much counts as held.
        let_go_share: of what a block keeps of one microbatch, how much is gone.
    """

    objectives: tuple[RankObjective, ...]
    row: Row
    passing_share: float = 0.0
    let_go_share: float = 0.0

    @property
    def ranks(self) -> range:
        return range(self.row.shape.ranks)

    @property
    def stages_per_rank(self) -> int:
        return self.row.shape.stages_per_rank

    def along(self, path: CriticalPath) -> RankRates:
        """Those of one path alone."""
        return replace(self, objectives=along(self.row.shape, path, self.objectives))

    def weights(self, name: Name) -> list[Weights]:
        """How often seconds of each rank count in its ``share`` or its ``extra``."""
        return [getattr(objective, name) for objective in self.objectives]

    def counts(self, name: Name) -> bool:
        """Whether any second counts in an objective."""
        return bool(self._stages[name].any())

    def counted(self, name: Name, *, of_blocks: bool) -> Floats:
        """How often seconds of forward and of both parts of backward count, of shape (ranks, 3).

        Args:
            of_blocks: for blocks, or for parts of the root.
        """
        return self._counted[name, of_blocks]

    def rates(self, name: Name, rank: int, byte_price_s: float, *, of_blocks: bool) -> Rates:
        """What counts in one objective of a rank at a price of memory for both together."""
        return rates_of(self.rows(name, of_blocks=of_blocks).at(byte_price_s)[rank])

    def rows(self, name: Name, *, of_blocks: bool) -> RateRows:
        """What counts in one objective of all ranks."""
        return self._rows[name, of_blocks]

    def bytes_held(self, *, of_blocks: bool) -> Floats:
        """Rates of all ranks that count bytes alone."""
        rows = np.zeros((len(self.ranks), len(RATES)))
        rows[:, BYTE] = 1.0
        rows[:, _KEPT_BYTE] = self._held[of_blocks] - self.let_go_share * of_blocks
        rows[:, _PASSING_BYTE] = self.passing_share * of_blocks
        return rows

    def held(self, rank: int, *, of_blocks: bool) -> float:
        """Microbatches whose activations a rank holds, of its blocks or its parts of the root."""
        return float(self._held[of_blocks][rank])

    def all_held(self, *, of_blocks: bool) -> Floats:
        """``held`` of all ranks."""
        return self._held[of_blocks]

    @cached_property
    def _held(self) -> tuple[Floats, Floats]:
        """Of parts of the root, and of blocks."""
        held = np.array([objective.held for objective in self.objectives], dtype=float)[:, :, None]
        root, blocks = (
            self.row.means(held, of_blocks=of_blocks)[:, 0] for of_blocks in (False, True)
        )
        return root, blocks

    @cached_property
    def _stages(self) -> Mapping[Name, Floats]:
        """What stages count, of shape (ranks, stages of a rank, 3)."""
        return {name: np.array([each.stages for each in self.weights(name)]) for name in NAMES}

    @cached_property
    def _counted(self) -> Mapping[tuple[Name, bool], Floats]:
        return {
            (name, of_blocks): self.row.means(self._stages[name], of_blocks=of_blocks)
            for name in NAMES
            for of_blocks in (False, True)
        }

    @cached_property
    def _rows(self) -> Mapping[tuple[Name, bool], RateRows]:
        return {
            (name, of_blocks): RateRows(
                seconds=self._seconds(name, of_blocks),
                byte=self.bytes_held(of_blocks=of_blocks) * self._share_of_byte(name)[:, None],
            )
            for name in NAMES
            for of_blocks in (False, True)
        }

    def _seconds(self, name: Name, of_blocks: bool) -> Floats:
        rows, one_stage = np.zeros((len(self.ranks), len(RATES))), self.stages_per_rank == 1
        rows[:, :3] = self._counted[name, of_blocks]
        if name == "share":
            ends = np.array([objective.ends_step for objective in self.objectives])
            in_root = np.array([objective.ends_in_root for objective in self.objectives])
            rows[:, RATES.index("tail")] = ends & (one_stage | (in_root & (not of_blocks)))
            rows[:, RATES.index("optimizer")] = ends
        is_alone = len(self.ranks) == 1
        rows[:, RATES.index("head")] = (name == "share") == is_alone and one_stage
        return rows

    def _share_of_byte(self, name: Name) -> Floats:
        """How much of the price of memory goes to an objective: in proportion to backwards."""
        both = np.array([objective.backwards for objective in self.objectives])
        return self._stages[name][:, :, 1].mean(axis=1) / both


def _anchored(rows: Floats, ranks: range) -> Anchors:
    few, mix = anchored(rows[ranks.start : ranks.stop])
    nearest = np.clip(range(len(rows)), ranks.start, ranks.stop - 1) - ranks.start
    return [ranks.start + rank for rank in few], mix[nearest]


def rates_of(row: Floats) -> Rates:
    """A row as rates."""
    return Rates(**dict(zip(RATES, row.tolist(), strict=True)))
