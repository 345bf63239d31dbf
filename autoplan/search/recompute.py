"""How many blocks of each kind are recomputed, as one number.

Kinds are taken in turn, those that free the most bytes for a second of recomputing first, so that
``count`` says it all: 0 keeps everything, the number of all blocks recomputes everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autoplan.search.candidate_costs import CandidateCosts

Policy = Literal["none", "full"] | int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RecomputeOrder:
    """Kinds in the order of recomputing, with the number of their blocks."""

    blocks: tuple[tuple[str, int], ...]

    @property
    def total(self) -> int:
        return sum(copies for _, copies in self.blocks)

    def counts(self, policy: Policy) -> tuple[int, int]:
        """The fewest and the most blocks that a pin allows."""
        if isinstance(policy, int):
            return policy, policy
        if policy == "none":
            return 0, 0
        return (self.total if policy == "full" else 0), self.total

    def of(self, count: int) -> dict[str, int]:
        """Blocks of each kind when ``count`` are recomputed in all."""
        found = {}
        for kind, copies in self.blocks:
            found[kind] = min(copies, count)
            count -= found[kind]
        return found


def recompute_order(costs: CandidateCosts) -> RecomputeOrder:
    """The order for a candidate, judged by its choices that replicate everything."""
    space = costs.microbatch.space
    seconds = dict.fromkeys(space.folded.kinds, 0.0)
    freed = dict.fromkeys(space.folded.kinds, 0.0)
    for number, name in enumerate(space.names):
        region = space.folded.region.get(name)
        if region in seconds:
            seconds[region] += costs.microbatch.operators[number][0].forward_s
    for storage in costs.storages:
        if storage.region in freed and any(0 in kept for kept in storage.holders.values()):
            freed[storage.region] += storage.nbytes
    kinds = sorted(seconds, key=lambda kind: -freed[kind] / max(seconds[kind], 1e-12))
    return RecomputeOrder(blocks=tuple((kind, space.folded.copies(kind)) for kind in kinds))
