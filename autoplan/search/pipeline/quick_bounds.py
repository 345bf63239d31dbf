"""A lower bound of a configuration in microseconds, to know in which order to look at them.

Each region's least values at four corners (forward and weights' backward counted or not) serve all
configurations of a family, since values between are bounded by interpolation. Memory is not in it,
but for weights, and messages over ``dp`` only at the fewest elements. With weights w over the ranks
that sum to one, and extras as in ``objectives``,

    step >= sum of shares + sum over ranks of w_r extra_r
         >= sum over items of (share + min over ranks of w_r extra_r(item)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autoplan.search.pipeline.configs import Config
from autoplan.search.pipeline.family import Family
from autoplan.search.pipeline.objectives import Counted, RankObjective, Row, Weights
from autoplan.search.regions.column import Prices

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class QuickBounds:
    """Bounds of all configurations of one family."""

    family: Family

    def busy(self, config: Config) -> float:
        """Compute of the fullest rank."""
        counts = self.family.counts.values()
        least = self._corners[:, 1, 1]
        once_s = sum(count * value for count, value in zip(counts, least, strict=True))
        return config.num_microbatches * once_s / config.pp

    def of(self, config: Config, ranks: Sequence[RankObjective]) -> float:
        """Seconds that no plan of the configuration, with these objectives, beats."""
        row = Row(is_block=self._is_block, shape=config.shape)
        counts = np.array(list(self.family.counts.values()), dtype=float)
        share, extra = (
            np.array([self._values(row, rank, weights) for rank, weights in enumerate(of_ranks)])
            for of_ranks in ([r.share for r in ranks], [r.extra for r in ranks])
        )
        total = float((counts * share.min(axis=0)).sum())
        return total + self._least_extra(config, counts, extra)

    def _least_extra(self, config: Config, counts: Floats, extra: Floats) -> float:
        """What the fullest rank's extra is at least: the mean, or that of its blocks alone."""
        each = extra @ counts
        if not each.all():
            return 0.0
        weights = (1 / each) / (1 / each).sum()
        mean = float((counts * (weights[:, None] * extra).min(axis=0)).sum())
        blocks = max(range(len(counts)), key=lambda number: counts[number])
        most = math.ceil(counts[blocks] / config.pp)
        return max(mean, most * float(extra[:, blocks].min()))

    @cached_property
    def _corners(self) -> Floats:
        """Least values by region, forward counted or not, and weights' backward or not."""
        return np.array(
            [
                [
                    [
                        menu.least(
                            Prices(
                                forward_s=forward, backward_input_s=1.0, backward_weight_s=weight
                            )
                        ).value
                        for weight in (0.0, 1.0)
                    ]
                    for forward in (0.0, 1.0)
                ]
                for menu in self.family.free.values()
            ]
        )

    def _values(self, row: Row, rank: int, weights: Weights) -> Floats:
        """Bounds of each region's value on a rank, by interpolation between corners."""
        found = np.zeros(len(self._corners))
        for region, of_blocks in enumerate(self._regions_are_blocks):
            counted = Counted(
                *(
                    row.mean(rank, of, of_blocks=of_blocks)
                    for of in zip(*weights.stages, strict=True)
                )
            )
            unit = counted.backward_input
            if unit:
                forward = min(1.0, counted.forward / unit)
                weight = min(1.0, counted.backward_weight / unit)
                mix = np.outer((1 - forward, forward), (1 - weight, weight))
                found[region] = unit * (self._corners[region] * mix).sum()
        return found

    @cached_property
    def _is_block(self) -> tuple[bool, ...]:
        return tuple(bool(item.kind) for item in self.family.menus.stack.items)

    @cached_property
    def _regions_are_blocks(self) -> tuple[bool, ...]:
        return tuple(dict(zip(self.family.keys, self._is_block, strict=True)).values())
