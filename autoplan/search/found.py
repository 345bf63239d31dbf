"""A plan in the terms of the search."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.search.candidates import Candidate


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A candidate, what it recomputes, and a choice for every decision.

    Attributes:
        count: recomputed blocks in all; ``recomputed`` has them by kind.
        choices: by decision of the candidate's space, the number of its strategy.
    """

    candidate: Candidate
    count: int
    recomputed: dict[str, int]
    choices: tuple[int, ...]
    time_s: float
    memory_pages: int
