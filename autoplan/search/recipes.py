"""The standard recipes, costed by the same model as everything else.

They are answers too: the search starts from those that the pins allow, so that it never ends worse
than the best of them. Placements by operator are the solver's, also in the tensor-parallel recipe.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autoplan.job import Job
from autoplan.search.best_first import BestFirst, Found
from autoplan.search.candidates import Candidate
from autoplan.search.solver import solve


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A recipe's mesh and ZeRO stage; the microbatch and the recomputing are whichever is best."""

    name: str
    tp: int
    zero: int


def standard_recipes(degrees: tuple[int, ...], job: Job) -> tuple[Recipe, ...]:
    """DDP, FSDP, and Megatron's tensor parallelism inside a node with DDP between.

    ``degrees`` are the admissible ones of ``tp``. One GPU needs no recipe.
    """
    if job.world_size == 1:
        return ()
    within = [tp for tp in degrees if 1 < tp <= job.gpus_per_node]
    megatron = [Recipe(name="Megatron TP x DDP", tp=max(within), zero=0)] if within else []
    return (
        Recipe(name="DDP", tp=1, zero=0),
        Recipe(name="FSDP (ZeRO-3)", tp=1, zero=3),
        *megatron,
    )


def best_of(recipe: Recipe, search: BestFirst, candidates: tuple[Candidate, ...]) -> Found | None:
    """The recipe at its best microbatch, with all or no blocks recomputed, within the pins.

    Args:
        candidates: those to take the recipe's members from.

    Returns:
        The fastest that fits; the one with the least memory when none does; None when the job
        allows no such mesh.
    """
    members = [c for c in candidates if c.tp == recipe.tp and c.zero in (recipe.zero, _only(c))]
    if not members:
        return None
    largest = max(members, key=lambda candidate: candidate.microbatch)
    solution = solve(search.problem(largest, 0, limited=False))
    if solution is None:
        return None
    tried = [found for member in members for found in _tried(search, member, solution.choices)]
    fitting = [found for found in tried if search.fits(found)]
    if fitting:
        chosen = min(fitting, key=lambda found: found.time_s)
    else:
        chosen = min(tried, key=lambda found: (found.memory_pages, found.time_s))
    return search.pinned(chosen.candidate, chosen.count)


def _tried(search: BestFirst, member: Candidate, choices: tuple[int, ...]) -> Iterator[Found]:
    """Few blocks recomputed, and many where that does not fit: it never takes less time."""
    for count in sorted({*search.order(member).counts(search.policy)}):
        found = search.found(member, count, choices)
        yield found
        if search.fits(found):
            break


def _only(candidate: Candidate) -> int | None:
    """The one stage that candidates with a single data-parallel rank have."""
    return candidate.zero if candidate.dp == 1 else None
