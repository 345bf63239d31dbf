"""What would be if the job were another: more memory, other pins. Each answer is a solve."""

from __future__ import annotations

from dataclasses import replace

from autoplan.errors import InfeasibleError, PlanError
from autoplan.explanation import (
    PLACE,
    TIME_PARTS,
    Explanation,
    Memory,
    MoreMemory,
    Question,
    Rival,
    Variant,
    Verdict,
    WhyNot,
    memory_parts,
    pins_of,
    variant_of,
)
from autoplan.job import Job
from autoplan.plan import Plan
from autoplan.progress import Progress
from autoplan.search.pipeline.estimates import estimate_of
from autoplan.search.pipeline.solve import TOLERANCE
from autoplan.search.pipeline.stored import found_of
from autoplan.search.planner import plan_priced
from autoplan.search.pricing import Pricing
from autoplan.trace.graph import OpGraph
from hardware_profiles.spec import ClusterSpec

_UNLIMITED_BYTES = 2**50
# The first addition of memory is this fraction of the limit, rounded down to a power of two; each
# of the next ones is twice the one before.
_FIRST_ADDITION = 16
_ADDITIONS = 3


def explain_plan(
    graph: OpGraph, plan: Plan, cluster: ClusterSpec, why_not: Question | None, tell: Progress
) -> Explanation:
    """Explains a plan of a graph; with a question, beside the best plan that it asks for.

    Args:
        cluster: the profile with which the plan was made.
        why_not: pins and placements to put on top of those of the plan's job.
        tell: called with the fraction done and what is being done.

    Raises:
        PlanError: the plan is not one of this graph.
    """
    pricing = Pricing(graph, plan.job, cluster)
    base = replace(variant_of(plan), estimate=estimate_of(pricing, found_of(pricing, plan)))
    tell(0.0, "planning again")
    best = plan_priced(pricing, with_alternatives=why_not is None)
    asked = memory = None
    if why_not is None:
        memory = _memory(pricing, best, tell)
    else:
        tell(0.5, "planning with the pins")
        asked = _why_not(pricing, base, why_not)
    return Explanation(
        model=plan.job.model.name,
        cluster=plan.job.cluster,
        plan=base,
        is_best=best.estimate.step_s >= base.estimate.step_s * (1 - TOLERANCE),
        lower_bound_s=min(best.search.lower_bound_s, base.estimate.step_s),
        memory=memory,
        rivals=tuple(
            Rival(alternative=other, pins=pins_of(other, plan.job)) for other in best.alternatives
        ),
        why_not=asked,
    )


def _memory(pricing: Pricing, best: Plan, tell: Progress) -> Memory:
    """What memory is worth: solves with more of it, until it is worth nothing."""
    tell(0.5, "planning with unlimited memory")
    unlimited = _unlimited(pricing, pricing.job)
    least_s, best_s = unlimited.estimate.step_s, best.estimate.step_s
    binds = least_s < best_s * (1 - TOLERANCE)
    more: list[MoreMemory] = []
    fastest = variant_of(best)
    first = 1 << max(0, (pricing.limit_bytes // _FIRST_ADDITION).bit_length() - 1)
    for number in range(_ADDITIONS if binds else 0):
        added = first << number
        tell(0.6 + 0.4 * number / _ADDITIONS, f"planning with {added / 2**30:.3g} GiB more")
        limit = _with_memory(pricing.job, pricing.limit_bytes + added)
        found = variant_of(_solved(pricing, limit))
        fastest = min(fastest, found, key=lambda variant: variant.estimate.step_s)
        saved_s = best_s - fastest.estimate.step_s
        more.append(MoreMemory(added_bytes=added, plan=fastest, difference_s=-saved_s))
        if fastest.estimate.step_s <= least_s * (1 + TOLERANCE):
            break
    return Memory(
        binds=binds,
        unlimited=unlimited,
        needed_bytes=unlimited.estimate.peak_memory_bytes - pricing.limit_bytes,
        more=tuple(more),
    )


def _with_memory(job: Job, nbytes: int) -> Job:
    """The job with exactly so many bytes to plan with."""
    return replace(job, memory_limit_bytes=nbytes, memory_margin=0.0)


def _unlimited(pricing: Pricing, job: Job) -> Variant:
    """The best plan if memory were no matter, beside the limit that there is."""
    found = variant_of(_solved(pricing, _with_memory(job, _UNLIMITED_BYTES)))
    estimate = replace(found.estimate, memory_limit_bytes=pricing.limit_bytes)
    return replace(found, estimate=estimate)


def _solved(pricing: Pricing, job: Job) -> Plan:
    return plan_priced(pricing.for_job(job), with_alternatives=False)


def _why_not(pricing: Pricing, base: Variant, question: Question) -> WhyNot:
    before = pricing.job
    pins, placements = question.given_pins, dict(question.placements)
    given = pins | {f"{PLACE}{glob}": placement for glob, placement in placements.items()}
    job = replace(
        before,
        planned_only=before.planned_only or pins.get("cp", 1) != 1,
        pins=replace(before.pins, **pins),  # pyright: ignore[reportArgumentType]
        placements=tuple(sorted((dict(before.placements) | placements).items())),
    )
    reason = ""
    try:
        found = variant_of(_solved(pricing, job))
        verdict = _compared(found.estimate.step_s, base.estimate.step_s)
    except InfeasibleError as error:
        found = _unlimited(pricing, job)
        verdict, reason = "does not fit", str(error)
    except PlanError as error:
        return WhyNot(
            pins=given,
            verdict="cannot be",
            reason=str(error),
            time_difference_s={},
            memory_difference_bytes={},
        )
    ours, theirs = memory_parts(base.memory), memory_parts(found.memory)
    return WhyNot(
        pins=given,
        verdict=verdict,
        reason=reason,
        plan=found,
        step_difference_s=found.estimate.step_s - base.estimate.step_s,
        time_difference_s={
            part: getattr(found.estimate, part) - getattr(base.estimate, part)
            for part in TIME_PARTS
        },
        memory_difference_bytes={name: theirs[name] - ours[name] for name in ours},
    )


def _compared(found_s: float, base_s: float) -> Verdict:
    if found_s > base_s * (1 + TOLERANCE):
        return "slower"
    return "as fast" if found_s >= base_s * (1 - TOLERANCE) else "faster"
