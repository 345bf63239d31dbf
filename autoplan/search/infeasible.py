"""Why nothing fits, and the nearest change that does, proven by a solve."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from autoplan.errors import InfeasibleError, PlanError
from autoplan.job import Job
from autoplan.search.best_first import BestFirst
from autoplan.search.candidates import Candidate, enumerate_candidates
from autoplan.search.found import Found
from autoplan.search.ilp import solve_memory
from autoplan.search.memory import largest_category, memory_of_plan
from autoplan.search.pricing import Pricing
from autoplan.search.problem import PAGE_BYTES

_GIB = 2**30
_CANDIDATES_TRIED = 4
_FREED = (
    "recompute", "zero", "replicas", "microbatch", "schedule", "stages_per_rank", "outermost",
    "tp", "pp", "dp",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Another job that may fit, and how to say so."""

    job: Job
    words: str


def explain(pricing: Pricing, mixing: tuple[str, ...]) -> InfeasibleError:
    """The error for a job of which no candidate fits."""
    search = _search(pricing, mixing)
    plans = _smallest_plans(search, search.candidates)
    least = min(plans, key=lambda plan: plan.memory_pages)
    memory = memory_of_plan(pricing, least)
    over = (least.memory_pages - pricing.limit_pages) * PAGE_BYTES
    name, largest = largest_category(memory)
    cure = next((c.words for c in changes(pricing, mixing) if _fits(pricing, c.job, mixing)), None)
    advice = cure or "none of the usual changes helps: use devices with more memory"
    return InfeasibleError(
        f"no plan fits: the smallest needs {memory.total / _GIB:.1f} GiB on each GPU, "
        f"{over / _GIB:.1f} GiB more than the {pricing.limit_bytes / _GIB:.1f} GiB there are "
        f"({name}: {largest / _GIB:.1f} GiB); {advice}"
    )


def _search(pricing: Pricing, mixing: tuple[str, ...]) -> BestFirst:
    candidates = enumerate_candidates(
        pricing.graph,
        pricing.job,
        mixing=mixing,
        strategies_of=pricing.strategies_of,
        overrides=pricing.overrides,
    )
    return BestFirst(pricing, candidates, pricing.job.pins.recompute)


def _smallest_plans(search: BestFirst, candidates: Iterable[Candidate]) -> Iterator[Found]:
    """The plans with the least memory of the most promising candidates."""
    for candidate in sorted(candidates, key=search.fewest_bytes)[:_CANDIDATES_TRIED]:
        for count in sorted({*search.order(candidate).counts(search.policy)}, reverse=True):
            solution = solve_memory(search.problem(candidate, count))
            if solution is not None:
                yield search.found(candidate, count, solution.choices)


def _fits(pricing: Pricing, job: Job, mixing: tuple[str, ...]) -> bool:
    """Whether a plan of another job fits, shown by one that does."""
    changed = pricing.for_job(job)
    try:
        search = _search(changed, mixing)
    except PlanError:
        return False
    possible = (c for c in search.candidates if search.fewest_bytes(c) <= changed.limit_bytes)
    return any(search.fits(found) for found in _smallest_plans(search, possible))


def changes(pricing: Pricing, mixing: tuple[str, ...]) -> Iterator[Change]:
    """Changes from the nearest to the farthest: pins first, then more nodes, then less work."""
    job = pricing.job
    if job.memory_limit_bytes is not None:
        whole = replace(job, memory_limit_bytes=None)
        yield Change(job=whole, words="without the memory limit it fits")
    if job.placements:
        yield Change(job=replace(job, placements=()), words="without the placements it fits")
    for name in _FREED:
        value = getattr(job.pins, name)
        if value is not None:
            freed = replace(job, pins=replace(job.pins, **{name: None}))
            yield Change(job=freed, words=f"without the pin {name}={value} it fits")
    nodes = 2 * job.nodes
    while nodes <= pricing.cluster.max_nodes and job.pins.tp is None and job.pins.dp is None:
        more = replace(job, nodes=nodes)
        yield Change(job=more, words=f"it fits on {nodes} nodes ({more.world_size} GPUs)")
        nodes *= 2
    batch = job.global_batch // 2 if mixing else 0
    while batch:
        yield Change(
            job=replace(job, global_batch=batch), words=f"it fits with a global batch of {batch}"
        )
        batch //= 2
