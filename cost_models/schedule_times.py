"""What schedule simulations take and give: seconds of each stage, and the clocks of each rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cost_models.schedules import ScheduleError


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTimes:
    """Seconds that one microbatch takes in one stage, and its messages to the neighbours.

    Attributes:
        forward_s: the forward.
        backward_input_s: gradient of the stage's inputs, with the recompute that comes before it.
        backward_weight_s: gradient of its weights; schedules that do not split the backward add
            the two.
        send_forward_s: its output to the next stage; of no account for the last stage.
        send_backward_s: the gradient of its input to the stage before; of none for the first.
    """

    forward_s: float
    backward_input_s: float
    backward_weight_s: float
    send_forward_s: float = 0.0
    send_backward_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleClocks:
    """When things end, in seconds from the start of the step.

    Attributes:
        rank_end_s: each rank's last action.
        last_backward_end_s: each stage's last backward (W where the schedule splits it).
        exposed_send_s: seconds that each rank waits for messages under way, beyond waiting for the
            compute that they come from.
    """

    rank_end_s: list[float]
    last_backward_end_s: list[float]
    exposed_send_s: list[float]


def check_times(stages: Sequence[StageTimes]) -> None:
    """Refuse what cannot be simulated.

    Raises:
        ScheduleError: a time is negative or not finite.
    """
    for index, stage in enumerate(stages):
        times = (
            stage.forward_s,
            stage.backward_input_s,
            stage.backward_weight_s,
            stage.send_forward_s,
            stage.send_backward_s,
        )
        if not all(0 <= time < float("inf") for time in times):
            raise ScheduleError(f"stage {index} takes {stage}: use times of 0 s or more")
