"""What the runtime can execute: the one table that search and runtime both read.

The search offers only what stands here, so that no plan is made that cannot run. Data parallelism
is by ZeRO stage, on PyTorch's FSDP2; ``cost_models.zero`` says what each stage holds and sends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cost_models.zero import ZERO_STAGES, ZeroStage, zero_stage

__all__ = [
    "RUNNABLE_PRECISIONS",
    "RUNNABLE_SCHEDULES",
    "ZERO_STAGES",
    "ScheduleSupport",
    "ZeroStage",
    "bucket_bytes",
    "runs",
    "sums_in_backward",
    "zero_stage",
]

_MOST_BUCKET_BYTES = 25 * 2**20
_LEAST_BUCKET_BYTES = 2**20
"""Sums of less cost more by the message than by the byte."""
_LEAST_BUCKETS = 2

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


def bucket_bytes(gradient_bytes: float) -> float:
    """The most that are summed by one message of what a rank sums; larger gradients go alone.

    A small model has two buckets, so that half of its sums go on beside its backward.
    """
    part_bytes = gradient_bytes / _LEAST_BUCKETS
    return min(_MOST_BUCKET_BYTES, max(part_bytes, _LEAST_BUCKET_BYTES))


def sums_in_backward(*, pipeline: bool, shards_states: bool, sends_on_dp: bool) -> bool:
    """Whether sums over the data-parallel ranks start in the last backward of a step, not behind.

    Args:
        pipeline: the model is cut into pipeline stages, whose actions PyTorch runs.
        shards_states: FSDP2 sends in the backward.
        sends_on_dp: the backward has other messages over ``dp`` (of batch statistics). Beside
            those, only the order in which gradients arrive would put all messages in one order on
            all ranks.
    """
    return not (pipeline or shards_states or sends_on_dp)


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
