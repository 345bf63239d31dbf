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
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autoplan.search.pipeline.configs import Config
from autoplan.search.pipeline.family import Family
from autoplan.search.pipeline.rank_rates import Name, RankRates
from autoplan.search.regions.column import Prices

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class QuickBounds:
    """Bounds of all configurations of one family."""

    family: Family

    def busy(self, config: Config) -> float:
        """Compute of the fullest rank."""
        once_s = float(self._counts @ self._corners[:, 1, 1])
        return config.num_microbatches * once_s / config.pp

    def of(self, config: Config, rates: RankRates) -> float:
        """Seconds that no plan of the configuration, of whose schedule the rates are, beats."""
        share, extra = self._values("share", rates), self._values("extra", rates)
        total = float(self._counts @ share.min(axis=0))
        return total + self._least_extra(config, extra)

    def _least_extra(self, config: Config, extra: Floats) -> float:
        """What the fullest rank's extra is at least: the mean, or that of its blocks alone."""
        each = extra @ self._counts
        if not each.all():
            return 0.0
        weights = (1 / each) / (1 / each).sum()
        mean = float(self._counts @ (weights[:, None] * extra).min(axis=0))
        blocks = int(self._counts.argmax())
        most = math.ceil(self._counts[blocks] / config.pp)
        return max(mean, most * float(extra[:, blocks].min()))

    def _values(self, name: Name, rates: RankRates) -> Floats:
        """Bounds of each region's value on each rank, by interpolation between corners."""
        both = np.array([rates.counted(name, of_blocks=of_blocks) for of_blocks in (False, True)])
        forward, unit, weight = np.moveaxis(both[self._is_block], 2, 0)
        forward, weight = (
            np.minimum(1.0, np.divide(of, unit, out=np.zeros_like(unit), where=unit > 0))
            for of in (forward, weight)
        )
        mixed = [
            of_forward * of_weight * self._corners[:, at, of, None]
            for at, of_forward in enumerate((1 - forward, forward))
            for of, of_weight in enumerate((1 - weight, weight))
        ]
        return (unit * sum(mixed)).T

    @cached_property
    def _corners(self) -> Floats:
        """Least values by region, forward counted or not, and weights' backward or not."""
        corners = [
            Prices(forward_s=forward, backward_input_s=1.0, backward_weight_s=weight)
            for forward in (0.0, 1.0)
            for weight in (0.0, 1.0)
        ]
        menus = self.family.free.values()
        return np.array([menu.least_values(corners) for menu in menus]).reshape(-1, 2, 2)

    @cached_property
    def _counts(self) -> Floats:
        """Items of each region."""
        return np.array(list(self.family.counts.values()), dtype=float)

    @cached_property
    def _is_block(self) -> npt.NDArray[np.intp]:
        """Of each region, 1 for blocks."""
        of_region = dict(zip(self.family.keys, self._item_is_block, strict=True))
        return np.array(list(of_region.values()), dtype=int)

    @cached_property
    def _item_is_block(self) -> tuple[bool, ...]:
        return tuple(bool(item.kind) for item in self.family.menus.stack.items)
