"""What a range of items costs a rank at its ends, whatever its columns are: messages and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autoplan.search.pipeline.rank_rates import Name, RankRates
from autoplan.search.pipeline.whole import Hop, WholeCosts

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RangeEnds:
    """Ends of ranges of items, of all ranks of a configuration."""

    costs: WholeCosts
    rates: RankRates

    @cached_property
    def leaving_bytes(self) -> Floats:
        """By rank and end of its range, what its stages hold of what they have sent on.

        Where a rank has several, the least that crosses anywhere is behind each, and nothing
        behind the model.
        """
        forward, _ = self._crossing
        held = np.array([objective.held for objective in self.rates.objectives], dtype=float)
        if held.shape[1] == 1:
            return held * forward
        least = forward[1:-1].min()
        behind = np.append(np.full(len(forward) - 1, least), 0.0)
        return held[:, -1:] * behind + held[:, :-1].sum(axis=1, keepdims=True) * least

    def sends_s(self, name: Name) -> tuple[Floats, Floats]:
        """For one objective, messages by rank and end of its range, and by rank and begin.

        Where a rank has several stages, the least that crosses anywhere counts for each.
        """
        forward, backward = self._crossing
        if self.rates.stages_per_rank > 1:
            forward, backward = (np.full(len(of), of[1:-1].min()) for of in (forward, backward))
        hops, weights = self.costs.hops, self.rates.weights(name)
        ends = [
            each.forward_sends * _seconds(hop, forward)
            for hop, each in zip(hops, weights, strict=True)
        ]
        begins = [
            each.backward_sends * _seconds(hop, backward)
            for hop, each in zip((hops[-1], *hops[:-1]), weights, strict=True)
        ]
        return np.array(ends), np.array(begins)

    @cached_property
    def _crossing(self) -> tuple[Floats, Floats]:
        """Bytes that cross at each end, there and back; none at the ends of the model."""
        cuts = self.costs.cuts
        forward = [0.0, *(cut.forward_bytes for cut in cuts), 0.0]
        backward = [0.0, *(cut.backward_bytes for cut in cuts), 0.0]
        return np.array(forward), np.array(backward)


def _seconds(hop: Hop, nbytes: Floats) -> Floats:
    return np.where(nbytes > 0, hop.fixed_s + nbytes * hop.per_byte_s, 0.0)


def readers_beyond_one(items: Sequence[int], count: int) -> Floats:
    """For each range of ``count`` items, how many of some items it has beyond the first."""
    readers = np.zeros(count + 1)
    for item in items:
        readers[item + 1 :] += 1
    return np.maximum(readers[None, :] - readers[:, None] - 1, 0.0)


def largest(values: Sequence[float]) -> Floats:
    """The largest value of every range of items; 0 where a range has none."""
    count = len(values) + 1
    found = np.zeros((count, count))
    found[:-1, 1:] = np.triu(np.broadcast_to(np.asarray(values), (count - 1, count - 1)))
    return np.maximum.accumulate(found, axis=1)
