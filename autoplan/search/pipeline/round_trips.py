"""Lower bounds by what neighbour ranks of 1F1B wait for each other, messages included.

With p ranks, rank r runs w_r = p - 1 - r forwards ahead. Its backward of microbatch i is followed
by its forward of w_r + 1 + i, so that a path can go round the ranks a to b again and again: after
b's backward of i come those of b - 1 down to a, a's forward of w_a + 1 + i, and that of all up to
b, which comes before b's backward of i + k, with k = b - a + 1. Beyond what all paths count
(``schedule_paths``), one that does so n times and is on rank b alone for the rest takes

    n (sum over a to b of c + sum over cuts between them of h) + (N_b - n k) c_b + w_b B_b

with c = F + B, h the messages there and back, and N_b = m - 1 - w_b for m microbatches, for any
n k <= N_b. So where ranks are busy for about as long, messages between them show. Instead of the
last w_b B_b it can go with the last microbatch through the ranks behind b and back (``passages``).

``trips`` says whether a limit leaves cuts of which no such path takes longer; here the least such
limit is looked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from autoplan.search.pipeline.bound_rows import BoundRows, PricedRows
from autoplan.search.pipeline.bounds import Bounds
from autoplan.search.pipeline.item_prices import ItemPricer
from autoplan.search.pipeline.objectives import Counted, RankObjective, Weights
from autoplan.search.pipeline.passages import Passages
from autoplan.search.pipeline.range_ends import RangeEnds
from autoplan.search.pipeline.range_tables import RangeTables
from autoplan.search.pipeline.ranges import Bands
from autoplan.search.pipeline.trips import Trips
from cost_models.schedules import PipelineShape

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
_HIGHEST = 1.1
"""The highest limit tried, over the bound that is known."""
_HALVINGS = 12
"""Of what is between the two: to a 4096th."""

_ONCE = Counted(1.0, 1.0, 1.0)
_NO_SENDS = {"forward_sends": 0, "backward_sends": 0}
_NOTHING = Weights(stages=(Counted(0.0, 0.0, 0.0),), **_NO_SENDS)


def has_round_trips(shape: PipelineShape) -> bool:
    """Whether these bounds hold for a schedule: 1F1B with several ranks."""
    return shape.schedule == "1f1b" and shape.ranks > 1


class RoundTrips:
    """Bounds of one configuration, over the ranges that other bounds leave open."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        shape = bounds.rates.row.shape
        ahead = shape.ranks - 1 - np.arange(shape.ranks)
        self._left = shape.microbatches - 1 - ahead
        known = bounds.rates.objectives
        self._rows = _with(bounds.rows, map(_turn, known, ahead.tolist()))
        self._ending = _with(bounds.rows, map(_ending, known, self._left.tolist()))
        self._there = _with(bounds.rows, map(_there, known))
        self._range_ends = RangeEnds(costs=bounds.rows.costs, rates=bounds.rates)
        self._tried: list[PricedRows] = []
        self._tried_ending: list[PricedRows] = []
        self._tried_there: list[PricedRows] = []

    def add(self, prices: Floats, pricer: ItemPricer) -> None:
        """Raises the bounds by prices of memory, one for each rank. Where cases are told apart,
        memory can be free in some."""
        asked = [prices, np.zeros_like(prices)][: self._rows.cases]
        for rows in (self._rows, *self._rows.recomputing):
            self._tried += rows.of(asked, pricer)
        for rows in (self._ending, *self._ending.recomputing):
            self._tried_ending += rows.of(asked, pricer)
        self._tried_there += self._there.of([0.0], pricer)

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
        trips = self._trips(cuts, tables, kept, beside_s)
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

    def _trips(
        self, cuts: Sequence[int], tables: RangeTables, kept: Bools, beside_s: float
    ) -> Trips:
        """What paths take of the ranges that are open, beyond the shares."""
        turn, ending, there = (
            _highest(tables, tried, kept)
            for tried in (self._tried, self._tried_ending, self._tried_there)
        )
        bands = tables.bands(kept)
        passages = Passages(
            once=bands,
            there=there,
            ending_s=ending.share,
            turns_s=ending.extra,
            sent_s=self._range_ends.sent_s,
            start=tables.start,
            left=self._left,
        )
        own_s = np.maximum(turn.extra, passages.last_s())
        at = np.arange(len(cuts) - 1), np.diff(cuts) - bands.shortest, np.array(cuts[1:])
        return Trips(
            cycle_s=turn.share,
            own_s=own_s,
            extra_s=np.maximum(bands.extra, passages.least_s() - beside_s),
            own_reference_s=np.where(own_s[at] < np.inf, own_s[at], 0.0),
            hops_s=self._range_ends.round_trips_s,
            start=tables.start,
            left=self._left,
        )


def _turn(known: RankObjective, ahead: int) -> RankObjective:
    """A forward and a backward as ``share``, and the backwards of those ahead as ``extra``."""
    share = Weights(stages=(_ONCE,), **_NO_SENDS)
    extra = Weights(stages=(Counted(0.0, float(ahead), float(ahead)),), **_NO_SENDS)
    return replace(known, share=share, extra=extra, ends_step=False, ends_in_root=False)


def _ending(known: RankObjective, left: int) -> RankObjective:
    """As ``share`` that of a path which ends on the rank, as ``extra`` so many forwards and
    backwards."""
    share = replace(known.share, backward_sends=0)
    extra = Weights(stages=(Counted(*3 * (float(left),)),), **_NO_SENDS)
    return replace(known, share=share, extra=extra, ends_step=True)


def _there(known: RankObjective) -> RankObjective:
    """As ``share`` a forward and its message."""
    share = replace(known.share, stages=(Counted(1.0, 0.0, 0.0),), backward_sends=0)
    return replace(known, share=share, extra=_NOTHING, ends_step=False, ends_in_root=False)


def _with(rows: BoundRows, objectives: Iterable[RankObjective]) -> BoundRows:
    return replace(rows, rates=replace(rows.rates, objectives=tuple(objectives)))


def _highest(tables: RangeTables, tried: Sequence[PricedRows], kept: Bools) -> Bands:
    """The highest bounds of both objectives, of ranges that are kept."""
    share = np.max([tables.over(rows.share) for rows in tried], axis=0)
    return tables.banded(share, np.max([tables.over(rows.extra) for rows in tried], axis=0), kept)
