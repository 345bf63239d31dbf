"""Lower bounds by what neighbour ranks of 1F1B wait for each other, messages included.

With p ranks, rank r runs w_r = p - 1 - r forwards ahead. Its backward of microbatch i is followed
by its forward of w_r + 1 + i, so that a path can go round the ranks a to b again and again: after
b's backward of i come those of b - 1 down to a, a's forward of w_a + 1 + i, and that of all up to
b, which comes before b's backward of i + k, with k = b - a + 1. Beyond what all paths count
(``schedule_paths``), one that does so n times and is on rank b alone for the rest takes

    n (sum over a to b of c + sum over cuts between them of h) + (N_b - n k) c_b + w_b B_b

with c = F + B, h the messages there and back, and N_b = m - 1 - w_b for m microbatches, for any
n k <= N_b. So where ranks are busy for about as long, messages between them show.

``trips`` says whether a limit leaves cuts of which no such path takes longer; here the least such
limit is looked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from autoplan.search.pipeline.bound_rows import PricedRows
from autoplan.search.pipeline.bounds import Bounds
from autoplan.search.pipeline.item_prices import ItemPricer
from autoplan.search.pipeline.objectives import Counted, RankObjective, Weights
from autoplan.search.pipeline.range_ends import RangeEnds
from autoplan.search.pipeline.trips import Trips
from cost_models.schedules import PipelineShape

Floats = npt.NDArray[np.float64]
_HIGHEST = 1.1
"""The highest limit tried, over the bound that is known."""
_HALVINGS = 12
"""Of what is between the two: to a 4096th."""


def has_round_trips(shape: PipelineShape) -> bool:
    """Whether these bounds hold for a schedule: 1F1B with several ranks."""
    return shape.schedule == "1f1b" and shape.ranks > 1


class RoundTrips:
    """Bounds of one configuration, over the ranges that other bounds leave open."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        shape = bounds.rates.row.shape
        ahead = shape.ranks - 1 - np.arange(shape.ranks)
        objectives = zip(bounds.rates.objectives, ahead.tolist(), strict=True)
        rates = replace(
            bounds.rates, objectives=tuple(_objective(known, of) for known, of in objectives)
        )
        self._left = shape.microbatches - 1 - ahead
        self._rows = replace(bounds.rows, rates=rates)
        self._hops_s = RangeEnds(costs=bounds.rows.costs, rates=bounds.rates).round_trips_s
        self._tried: list[PricedRows] = []

    def add(self, prices: Floats, pricer: ItemPricer) -> None:
        """Raises the bounds by prices of memory, one for each rank."""
        for rows in (self._rows, *self._rows.recomputing):
            self._tried += rows.of([prices], pricer)

    def bound_s(self, known_s: float, below_s: float, cuts: Sequence[int]) -> float:
        """What no plan of the configuration is faster than, or ``below_s`` if that is less.

        Args:
            known_s: a bound.
            cuts: of which ranks a reference is taken.
        """
        tables, kept = self._bounds.open_to(below_s)
        bands = tables.bands(kept)
        least = bands.least_share()
        if least is None:
            return below_s
        beside_s = least.share + self._bounds.head_s
        cycle_s, own_s = (
            np.max([tables.over(each) for each in of], axis=0)
            for of in zip(*((rows.share, rows.extra) for rows in self._tried), strict=True)
        )
        at = np.arange(len(cuts) - 1), np.diff(cuts) - bands.shortest, np.array(cuts[1:])
        trips = Trips(
            cycle_s=cycle_s,
            own_s=own_s,
            extra_s=bands.extra,
            own_reference_s=own_s[at],
            hops_s=self._hops_s,
            start=tables.start,
            left=self._left,
        )
        low_s, high_s = known_s, min(below_s, _HIGHEST * known_s)
        if not trips.fit(high_s - beside_s):
            return high_s
        for _ in range(_HALVINGS):
            middle_s = (low_s + high_s) / 2
            if trips.fit(middle_s - beside_s):
                high_s = middle_s
            else:
                low_s = middle_s
        return low_s


def _objective(known: RankObjective, ahead: int) -> RankObjective:
    """A forward and a backward as ``share``, and the backwards of those ahead as ``extra``."""
    nothing = {"forward_sends": 0, "backward_sends": 0}
    once = Counted(1.0, 1.0, 1.0)
    return replace(
        known,
        share=Weights(stages=(once,), **nothing),
        extra=Weights(stages=(Counted(0.0, float(ahead), float(ahead)),), **nothing),
        ends_step=False,
        ends_in_root=False,
    )
