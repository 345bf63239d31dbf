"""The prices of a candidate, and how often a step pays them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoplan.search.candidates import Candidate
from autoplan.search.folded_graph import FoldedGraph
from autoplan.search.operator_costs import MicrobatchCosts
from autoplan.search.storages import KeptStorage
from autoplan.search.weight_costs import WeightCosts

Recomputed = Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateCosts:
    """Everything that is priced for a candidate, whatever is recomputed.

    Attributes:
        fixed_pages: workspace, buffers and the step's inputs.
        limit_pages: what the device has for all of it.
        overlap_efficiency: fraction of hidden communication time that is really saved.
    """

    candidate: Candidate
    microbatch: MicrobatchCosts
    storages: tuple[KeptStorage, ...]
    weights: WeightCosts
    fixed_pages: int
    limit_pages: int
    overlap_efficiency: float

    @property
    def folded(self) -> FoldedGraph:
        return self.microbatch.space.folded

    def region(self, number: int) -> str:
        """Block kind of a decision; ``ROOT`` outside blocks, and for doors."""
        return self.microbatch.space.regions[number]


def kept_copies(folded: FoldedGraph, storage: KeptStorage, recomputed: Recomputed) -> int:
    """How many copies of a storage the blocks that are not recomputed keep."""
    kept = folded.copies(storage.region) - recomputed.get(storage.region, 0)
    for door in folded.doors.get(storage.region, ()):
        if door.name == storage.source.node:
            return min(kept, door.distinct)
    return kept
