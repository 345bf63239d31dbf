"""What a range of items costs a rank at its ends, whatever its columns are: messages and bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autoplan.search.pipeline.rank_rates import RankRates
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
        found = []
        for objective in self.rates.objectives:
            *between, last = objective.held
            inside = 0.0
            if between:
                least = forward[1:-1].min()
                forward, inside = np.append(np.full(len(forward) - 1, least), 0.0), least
            found.append(last * forward + sum(between) * inside)
        return np.array(found)

    def sends_s(self, name: str) -> Floats:
        """For one objective, messages by rank and range: forward behind it, backward before it."""
        ends, begins = self._sends[name]
        return ends[:, None, :] + begins[:, :, None]

    @cached_property
    def _sends(self) -> Mapping[str, tuple[Floats, Floats]]:
        """For each objective, messages by rank at the ends and the begins of ranges."""
        found = {}
        for name in ("share", "extra"):
            rows = [self._of_rank(name, rank) for rank in self.rates.ranks]
            found[name] = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
        return found

    @cached_property
    def _crossing(self) -> tuple[Floats, Floats]:
        """Bytes that cross at each end, there and back; none at the ends of the model."""
        cuts = self.costs.cuts
        forward = [0.0, *(cut.forward_bytes for cut in cuts), 0.0]
        backward = [0.0, *(cut.backward_bytes for cut in cuts), 0.0]
        return np.array(forward), np.array(backward)

    def _of_rank(self, name: str, rank: int) -> tuple[Floats, Floats]:
        """Where a rank has several stages, the least that crosses anywhere counts for each."""
        weights = self.rates.weights(name, rank)
        forward, backward = self._crossing
        if self.rates.stages_per_rank > 1:
            forward, backward = (np.full(len(of), of[1:-1].min()) for of in (forward, backward))
        hops = self.costs.hops
        ends = weights.forward_sends * _seconds(hops[rank], forward)
        return ends, weights.backward_sends * _seconds(hops[rank - 1], backward)


def _seconds(hop: Hop, nbytes: Floats) -> Floats:
    return np.where(nbytes > 0, hop.fixed_s + nbytes * hop.per_byte_s, 0.0)


def readers_beyond_one(items: Sequence[int], count: int) -> Floats:
    """For each range of ``count`` items, how many of some items it has beyond the first."""
    readers = np.zeros(count + 1)
    for item in items:
        readers[item + 1 :] += 1
    return np.maximum(readers[None, :] - readers[:, None] - 1, 0.0)


def largest(values: Sequence[float]) -> Floats:
    """The largest value of every range of items."""
    count = len(values) + 1
    found = np.zeros((count, count))
    for first in range(count - 1):
        found[first, first + 1 :] = np.maximum.accumulate(values[first:])
    return found
