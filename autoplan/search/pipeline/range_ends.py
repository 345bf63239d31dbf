"""What a range of items costs a rank at its ends, whatever its columns are: messages and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autoplan.search.pipeline.rank_rates import Name, RankRates
from autoplan.search.pipeline.whole import WholeCosts

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
        weights = self.rates.weights(name)
        forward = np.array([[each.forward_sends] for each in weights])
        backward = np.array([[each.backward_sends] for each in weights])
        ends_s, begins_s = self._message_s
        return forward * ends_s, backward * begins_s

    @property
    def sent_s(self) -> Floats:
        """By rank and end of its range, a message to the next rank."""
        return self._message_s[0]

    @property
    def round_trips_s(self) -> Floats:
        """By rank and begin of its range, a message from the rank before and one back."""
        ends_s, begins_s = self._message_s
        return np.roll(ends_s, 1, axis=0) + begins_s

    @cached_property
    def _message_s(self) -> tuple[Floats, Floats]:
        """Of one message of each rank, at each end and each begin of its range."""
        forward, backward = self._crossing
        if self.rates.stages_per_rank > 1:
            forward, backward = (np.full(len(of), of[1:-1].min()) for of in (forward, backward))
        fixed_s = np.array([[hop.fixed_s] for hop in self.costs.hops])
        per_byte_s = np.array([[hop.per_byte_s] for hop in self.costs.hops])
        ends_s = np.where(forward > 0, fixed_s + forward * per_byte_s, 0.0)
        begins_s = np.where(backward > 0, fixed_s + backward * per_byte_s, 0.0)
        return ends_s, np.roll(begins_s, 1, axis=0)

    @cached_property
    def _crossing(self) -> tuple[Floats, Floats]:
        """Bytes that cross at each end, there and back; none at the ends of the model."""
        cuts = self.costs.cuts
        forward = [0.0, *(cut.forward_bytes for cut in cuts), 0.0]
        backward = [0.0, *(cut.backward_bytes for cut in cuts), 0.0]
        return np.array(forward), np.array(backward)


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
