"""Figures of one microbatch that the amounts of a region are sums of.

Which figures there are follows from what can be chosen; how large they are, from the microbatch and
the degree of ``tp``: seconds of an operator under a strategy, seconds of a motion of a tensor,
bytes on a rank of a tensor, or of something that autograd saves, whole or split.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autoplan.search.operator_costs import MicrobatchCosts
from autoplan.search.regions.ways import Ways
from autoplan.sharding.redistribute import Motion
from autoplan.trace.graph import Ref

NOTHING, ONE, PART = 0, 1, 2
"""The figures that are always 0, always 1, and a rank's part of what is split over ``tp``."""

Slots = npt.NDArray[np.intp]


class SavedBytes(NamedTuple):
    """Something that a call saves, by its number among them."""

    node: str
    number: int


@dataclass(slots=True)
class Figures:
    """Numbers figures, each once (their *slots*), and finds them for any microbatch."""

    _count: int = 3
    _bytes: dict[tuple[Ref | SavedBytes, bool], int] = field(default_factory=dict)
    _largest: dict[tuple[int, ...], int] = field(default_factory=dict)
    _operators: dict[str, int] = field(default_factory=dict)
    _motions: dict[tuple[Ref, Motion], int] = field(default_factory=dict)

    def nbytes(self, of: Ref | SavedBytes, *, is_split: bool) -> int:
        """Bytes on a rank of a tensor, or of something saved."""
        return self._slot(self._bytes, (of, is_split))

    def largest(self, slots: Iterable[int]) -> int:
        """The largest of some bytes."""
        first, *others = sorted(slots)
        return self._slot(self._largest, (first, *others)) if others else first

    def motion(self, ref: Ref, motion: Motion) -> int:
        """Seconds of moving a tensor."""
        return self._slot(self._motions, (ref, motion))

    def operator(self, name: str, strategies: int) -> Slots:
        """Seconds of a call, of shape (3, strategies): forward, backward but for gradients of
        parameters, and these."""
        first = self._slot(self._operators, name, 3 * strategies)
        return np.arange(first, first + 3 * strategies).reshape(3, strategies)

    def found(self, ways: Ways, costs: MicrobatchCosts) -> npt.NDArray[np.float64]:
        """All figures by slot, for the microbatch of these ways and costs."""
        values = np.zeros(self._count)
        values[ONE], values[PART] = 1.0, 1 / costs.space.tp
        for (of, is_split), slot in self._bytes.items():
            if isinstance(of, Ref):
                whole = costs.sizes.meta(of).nbytes
            else:
                whole = ways.region.by_name[of.node].saved[of.number].nbytes
            values[slot] = whole * values[PART if is_split else ONE]
        for slots, slot in self._largest.items():
            values[slot] = values[list(slots)].max()
        for name, slot in self._operators.items():
            priced = costs.operators[costs.space.number[name]]
            seconds = [(c.forward_s, c.backward_s, c.backward_weight_s) for c in priced]
            forward, backward, weight = np.array(seconds).T
            values[slot : slot + 3 * len(priced)] = *forward, *(backward - weight), *weight
        for (ref, motion), slot in self._motions.items():
            values[slot] = costs.converter.motion_s(motion, _crossing_bytes(ways, costs, ref))
        return values

    def _slot(self, known: dict[Any, int], key: Hashable, slots: int = 1) -> int:
        if key not in known:
            known[key] = self._count
            self._count += slots
        return known[key]


def _crossing_bytes(ways: Ways, costs: MicrobatchCosts, ref: Ref) -> int:
    """Bytes of a folded tensor as its conversions are priced."""
    if ref in ways.region.entries:
        return ways.boundaries[ways.region.entries[ref]].meta.nbytes
    return costs.sizes.meta(ref).nbytes
