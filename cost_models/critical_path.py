"""The critical path of a pipelined step: which actions and messages decide how long it takes.

One longest path through what the schedule's actions wait for: the action before on the same rank,
the message from the neighbour stage, and of a message the one before it from the same rank. What
waits for what does not depend on the times, so for any other times the same path still is a lower
bound: it is linear in them, and exact where it was taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cost_models.critical_events import CriticalEvents
from cost_models.critical_rows import CriticalRows
from cost_models.schedule_paths import StageCounts
from cost_models.schedule_times import StageTimes, check_times
from cost_models.schedules import PipelineShape, ScheduleError


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CriticalPath(StageCounts):
    """What is counted along the path.

    Attributes:
        ends_at: stage at whose last backward the path ends (W where the schedule splits it).
    """

    ends_at: int


def critical_path(
    shape: PipelineShape, stages: Sequence[StageTimes], tails_s: Sequence[float] | None = None
) -> CriticalPath:
    """A longest path of a step whose messages run beside compute.

    With ``time`` of ``simulate(..., blocking_sends=False)``, ``length(stages)`` of the path is
    ``time.last_backward_end_s[ends_at]``, and ``length(others)`` is no more than that of the
    simulation of any other times. Messages that do not cross ranks are not counted.

    Args:
        shape: the schedule and its sizes.
        stages: times of each stage, in the model's order.
        tails_s: what follows the last backward of each stage; none if not given. The path ends at
            the stage whose last backward and tail end last, the first of them where several do.

    Raises:
        ScheduleError: other numbers of stages or tails than the shape's, or a time is negative or
            not finite.
    """
    tails_s = [0.0] * shape.stages if tails_s is None else tails_s
    if len(stages) != shape.stages or len(tails_s) != shape.stages:
        raise ScheduleError(
            f"{len(stages)} stages and {len(tails_s)} tails: use {shape.stages} of each"
        )
    check_times(stages)
    run = CriticalEvents(shape, stages) if shape.schedule == "zbv" else CriticalRows(shape, stages)
    ends = [end_s + tail_s for end_s, tail_s in zip(run.stage_end_s, tails_s, strict=True)]
    ends_at = ends.index(max(ends))
    counts = run.path_to(ends_at)
    return CriticalPath(
        forward=counts.forward,
        backward_input=counts.backward_input,
        backward_weight=counts.backward_weight,
        forward_sends=counts.forward_sends,
        backward_sends=counts.backward_sends,
        ends_at=ends_at,
    )
