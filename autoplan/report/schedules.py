"""Pipeline schedules in words."""

from __future__ import annotations

from autoplan.plan import Plan
from autoplan.report import units

_NAMES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved_1f1b": "interleaved 1F1B",
    "zero_bubble": "zero bubble",
    "zbv": "zero bubble in a V",
}
_SHORT = {"interleaved_1f1b": "interleaved", "zbv": "ZB-V"}


def stages_per_rank(plan: Plan) -> int:
    """Stages that each rank of the pipeline runs; 1 without a pipeline."""
    return len(plan.stages) // plan.mesh.pp or 1


def name(schedule: str) -> str:
    """``interleaved 1F1B``."""
    return _NAMES.get(schedule, schedule)


def short_name(schedule: str, per_rank: int) -> str:
    """``interleaved x2``: with the stages of a rank, where they are several."""
    text = _SHORT.get(schedule, name(schedule))
    return f"{text} x{per_rank}" if per_rank > 1 and schedule != "zbv" else text


def sentence(plan: Plan) -> str:
    """The schedule of a plan with a pipeline, its sizes, and what of the step is bubble."""
    per_rank, count = stages_per_rank(plan), plan.num_microbatches
    stages = f"{len(plan.stages)} stages" + (f", {per_rank} on each rank" if per_rank > 1 else "")
    estimate = plan.estimate
    bubble = "no bubble"
    if estimate.bubble_s:
        share = units.percent(estimate.bubble_s / estimate.step_s)
        bubble = f"bubble {units.seconds(estimate.bubble_s)} ({share})"
    return f"{name(plan.schedule)}: {stages}; {count} microbatches; {bubble}"
