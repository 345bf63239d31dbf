"""Other cuts, where a plan takes longer than its bound: what was learned from plans is added up.

Cuts come from bounds of ranges. A plan shows more: what ranks that were filled really take, and, of
1F1B, two things that no sum plus bottleneck has in it. With S the seconds of a forward and a
backward of all ranks behind rank r, and B those of a backward of all before it,

- when r has run its last forward, that microbatch has yet to pass all ranks behind it and to come
  back: r's own path goes on for S then, not only for the backwards that r has left;
- what follows r's last backward counts where it outlasts B, the way from there to the first rank.

S and B are those of the plan that was seen last. So the cuts are a guess, which the plans made of
them show to be good or not; no bound comes from here.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from autoplan.search.pipeline.bounds import Bounds
from autoplan.search.pipeline.partition import partition
from autoplan.search.pipeline.ranges import Bands
from autoplan.search.pipeline.whole import WholeValue

Floats = npt.NDArray[np.float64]
_Range = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recut:
    """Cuts of one configuration with one stage a rank.

    Attributes:
        bounds: of all ranges.
        taken_s: by rank, begin and end of its range, what plans were seen to take of both
            objectives.
    """

    bounds: Bounds
    taken_s: dict[_Range, float] = field(default_factory=dict)

    def after(self, cuts: Sequence[int], value: WholeValue) -> tuple[int, ...] | None:
        """The best cuts by what is known with another plan; None where there are none.

        Args:
            cuts: of the plan.
        """
        for rank, (first, stop) in enumerate(itertools.pairwise(cuts)):
            self.taken_s[rank, first, stop] = self._taken_s(rank, value)
        bands = self.bounds.bands()
        extra = bands.extra.copy()
        if self.bounds.rates.row.shape.schedule == "1f1b":
            extra += self._last_trip_s(bands, value) + self._tail_s(bands, value)
        for (rank, first, stop), taken_s in self.taken_s.items():
            at = rank, stop - first - bands.shortest, stop
            known_s = bands.share[at] + bands.extra[at]
            if known_s < taken_s:
                extra[at] += taken_s - known_s
        found = partition(Bands(shortest=bands.shortest, share=bands.share, extra=extra))
        return found.cuts if found else None

    def _taken_s(self, rank: int, value: WholeValue) -> float:
        objective, seconds = self.bounds.rates.objectives[rank], value.sent[rank]
        each = seconds.forward_s, seconds.backward_input_s, seconds.backward_weight_s
        counts = np.add(objective.share.stages[0], objective.extra.stages[0])
        return float(counts @ each)

    def _last_trip_s(self, bands: Bands, value: WholeValue) -> Floats:
        """How much longer the last microbatch is under way behind a rank than this works."""
        forward_s = np.array([each.forward_s + each.send_forward_s for each in value.sent])
        backward_s = _backwards_s(value)
        both_s = forward_s + backward_s
        behind_s = both_s[::-1].cumsum()[::-1] - both_s
        ahead = np.arange(len(both_s))[::-1]
        left_s = (ahead * backward_s / both_s)[:, None, None] * np.where(
            bands.share < np.inf, bands.share, 0.0
        )
        return np.maximum(0.0, behind_s[:, None, None] - left_s)

    def _tail_s(self, bands: Bands, value: WholeValue) -> Floats:
        """What follows the last backward of ranks, beyond the backwards of those before."""
        model = self.bounds.model
        units = [unit for load in value.loads for unit in load.units]
        elements = sum(unit.count * unit.trained_elements for unit in units)
        each_s = sum(seconds.tail_s for seconds in value.seconds) / (elements or 1.0)
        ends = np.cumsum([0.0, *(model.elements[key].least_trained for key in model.keys)])
        stop = np.arange(len(ends))
        start = stop - bands.shortest - np.arange(bands.share.shape[1])[:, None]
        tail_s = each_s * (ends[stop] - ends[np.maximum(start, 0)])
        before_s = np.concatenate([[np.inf], _backwards_s(value).cumsum()[:-1]])
        return np.maximum(0.0, tail_s - before_s[:, None, None])


def _backwards_s(value: WholeValue) -> Floats:
    """Of one microbatch on each rank, with the message to the rank before."""
    return np.array(
        [
            each.backward_input_s + each.backward_weight_s + each.send_backward_s
            for each in value.sent
        ]
    )
