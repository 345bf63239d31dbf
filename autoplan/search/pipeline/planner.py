"""The plan of a job over pipelines, data and tensor parallelism together, with its proof."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from autoplan.errors import PlanError
from autoplan.job import Pins
from autoplan.plan import Plan, SearchRecord
from autoplan.search.candidates import admissible_tp
from autoplan.search.pins import check_pins
from autoplan.search.pipeline.configs import MOST_STAGES_PER_RANK
from autoplan.search.pipeline.joint import JointSearch
from autoplan.search.pipeline.offered import offered_configs
from autoplan.search.pipeline.plans import plan_of
from autoplan.search.pipeline.refusal import does_not_fit, no_configuration
from autoplan.search.pipeline.rivals import Rivals
from autoplan.search.pricing import Pricing
from autoplan.search.regions.menus import Recompute
from autoplan.trace.stack import stack_of

Progress = Callable[[float, str], None]

SPACE = (
    "all pp x dp x tp meshes whose tp splits every heavy operator, pp or dp outermost, ZeRO 0-3 "
    "over all data-parallel ranks or those of a node, all microbatches that divide the batch; with "
    "a pipeline at least as many microbatches as ranks, 1F1B, zero bubble, and for models with one "
    f"kind of block interleaved 1F1B with up to {MOST_STAGES_PER_RANK} stages a rank, filled "
    "evenly; cuts between any two blocks or parts of the rest; for each block and operator one "
    "placement on tp and whether it is recomputed, placed alike where a block ends as where it "
    "begins"
)


def plan_jointly(
    pricing: Pricing, progress: Progress | None = None, *, with_alternatives: bool = True
) -> Plan:
    """The fastest plan that fits, of all that the job's pins allow.

    Raises:
        PlanError: pins, batch and devices do not go together.
        InfeasibleError: nothing fits the memory.
    """
    job = pricing.job
    check_pins(job)
    recompute = _recompute(job.pins)
    stack = stack_of(pricing.graph)
    degrees = admissible_tp(pricing.graph, job, pricing.strategies_of, pricing.overrides)
    offered = offered_configs(pricing, stack, degrees)
    if not offered:
        raise no_configuration(pricing, stack, degrees)
    search = JointSearch(pricing, stack)
    outcome = search.best_of(offered, recompute, progress=_told(progress))
    if outcome.best is None:
        raise does_not_fit(pricing, stack, offered, recompute)
    rivals = Rivals(pricing, stack, search, offered, degrees, recompute)
    best, standard = rivals.best_with_recipes(outcome.best)
    bound_s = min(outcome.bound_s, best.step_s)
    if math.isclose(bound_s, best.step_s, rel_tol=1e-9):
        bound_s = best.step_s
    record = SearchRecord(
        gap=1 - bound_s / best.step_s,
        lower_bound_s=bound_s,
        candidates=len(offered),
        space=_space(pricing),
    )
    plan = plan_of(pricing, best, record)
    if not with_alternatives:
        return plan
    return replace(plan, alternatives=tuple(rivals.alternatives(best, standard)))


def _recompute(pins: Pins) -> Recompute:
    if pins.recompute in (None, "none", "full"):
        return pins.recompute or "free"
    raise PlanError(
        f"recompute={pins.recompute}: operators are chosen one by one where what cannot run yet is "
        "planned too; pin none or full, or leave it out"
    )


def _space(pricing: Pricing) -> str:
    """The space that the bound holds for."""
    job = pricing.job
    is_free = job.pins == Pins() and not job.placements
    return SPACE if is_free else f"{SPACE}; of these, what the pins and placements given allow"


def _told(progress: Progress | None) -> Callable[[int, int, float | None], None] | None:
    if progress is None:
        return None

    def tell(done: int, total: int, best_s: float | None) -> None:
        best = "no plan yet" if best_s is None else f"best {best_s:.4g} s a step"
        progress(done / total, f"{done} of {total} configurations solved, {best}")

    return tell
