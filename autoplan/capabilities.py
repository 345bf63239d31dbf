"""What the runtime can execute: the one table that search and runtime both read.

The search offers only what stands here, so that no plan is made that cannot run. Data parallelism
is by ZeRO stage, on PyTorch's FSDP2; ``cost_models.zero`` says what each stage holds and sends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cost_models.zero import ZERO_STAGES, ZeroStage, zero_stage

__all__ = [
    "BUCKET_BYTES",
    "RUNNABLE_PRECISIONS",
    "RUNNABLE_SCHEDULES",
    "ZERO_STAGES",
    "ScheduleSupport",
    "ZeroStage",
    "runs",
    "zero_stage",
]

# Gradients of stage 0 are summed together in buckets of at most so many bytes, larger ones alone.
BUCKET_BYTES = 25 * 2**20

RUNNABLE_PRECISIONS = ("fp32", "bf16", "fp16")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleSupport:
    """What can be combined with one pipeline schedule.

    Attributes:
        zero: ZeRO stages. In a pipeline 2 and 3 run as 1 does (``cost_models.zero``).
        splits_backward: whether the gradients of weights are computed apart from those of what a
            stage received. PyTorch's checkpoints would then run a recomputed block once for the
            first, and again for every weight, and what single operators make again would not last
            until the second; and some models' stages cannot be split
            (``autoplan.sharding.split_backward``).
    """

    zero: tuple[int, ...]
    splits_backward: bool


_ANY_ZERO = (0, 1, 2, 3)
_WHOLE = ScheduleSupport(zero=_ANY_ZERO, splits_backward=False)
_SPLIT = ScheduleSupport(zero=_ANY_ZERO, splits_backward=True)

RUNNABLE_SCHEDULES: Mapping[str, ScheduleSupport] = {
    "none": _WHOLE,
    "gpipe": _WHOLE,
    "1f1b": _WHOLE,
    "interleaved_1f1b": _WHOLE,
    "zero_bubble": _SPLIT,
    "zbv": _SPLIT,
}


def runs(schedule: str, *, zero: int, recomputes: bool) -> str | None:
    """Why a plan with these choices cannot run, with the cure; None when it can.

    Args:
        schedule: a name of ``cost_models.schedules``, or ``none`` without a pipeline.
        recomputes: whether any block, or operator of one, is recomputed in the backward.
    """
    support = RUNNABLE_SCHEDULES.get(schedule)
    if support is None:
        return f"schedule {schedule} cannot be run: use one of {', '.join(RUNNABLE_SCHEDULES)}"
    if zero not in support.zero:
        stages = ", ".join(map(str, support.zero))
        return f"schedule {schedule} cannot be run with zero = {zero}: use one of {stages}"
    if recomputes and support.splits_backward:
        return (
            f"schedule {schedule} splits the backward, which would run what is recomputed more "
            "than once: recompute nothing, or use 1f1b or interleaved_1f1b"
        )
    return None
