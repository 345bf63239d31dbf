"""The time of a pipelined step by simulating its schedule: bubbles, messages, when syncs begin.

Nothing is taken from a bubble formula: stages may differ, and so may their messages. Messages
either run beside compute (``schedule_wavefront``, for ``zbv`` ``schedule_events``) or block both
sides (``schedule_exchange``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cost_models.schedule_events import simulate_events
from cost_models.schedule_exchange import simulate_exchanges
from cost_models.schedule_memory import held_microbatches
from cost_models.schedule_times import ScheduleClocks, StageTimes, check_times
from cost_models.schedule_wavefront import simulate_wavefront
from cost_models.schedules import PipelineShape, ScheduleError, ScheduleName

__all__ = ["PipelineTime", "StageTimes", "simulate"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineTime:
    """One step of a pipeline; seconds from the start of its first action.

    Each rank's ``busy_s + exposed_send_s + idle_s`` is ``makespan_s``.

    Attributes:
        makespan_s: the end of the last action of all.
        busy_s: compute of each rank.
        idle_s: what each rank waits for others' compute, and for the last rank to end: the bubble.
        exposed_send_s: what each rank waits for messages under way.
        rank_end_s: when each rank's last action ends, with the message that it waits for.
        last_backward_end_s: when each stage's last backward ends; its gradients can be reduced.
        in_flight: the most microbatches that each stage holds between F and the gradient of inputs.
        in_flight_to_weight: the most between F and the gradient of weights; larger where the
            schedule splits the backward.
    """

    makespan_s: float
    busy_s: tuple[float, ...]
    idle_s: tuple[float, ...]
    exposed_send_s: tuple[float, ...]
    rank_end_s: tuple[float, ...]
    last_backward_end_s: tuple[float, ...]
    in_flight: tuple[int, ...]
    in_flight_to_weight: tuple[int, ...]


def simulate(
    schedule: ScheduleName,
    stages: Sequence[StageTimes],
    microbatches: int,
    ranks: int,
    *,
    blocking_sends: bool,
) -> PipelineTime:
    """Simulate one step of a pipeline.

    Args:
        schedule: see ``schedules``.
        stages: times of all stages, in the model's order; stage i is on rank ``i % ranks`` (of
            ``zbv`` in a V).
        microbatches: per step.
        ranks: of the pipeline.
        blocking_sends: both sides of a message wait for it (Megatron without overlap; torch's
            ``Schedule1F1B`` in its steady state); else it runs beside the sender's next compute
            (torch's other schedules).

    Raises:
        ScheduleError: the schedule cannot run these numbers, or a time is negative or not finite.
    """
    shape = PipelineShape(
        schedule=schedule, ranks=ranks, stages=len(stages), microbatches=microbatches
    )
    check_times(stages)
    if blocking_sends and schedule == "zbv":
        raise ScheduleError("zbv with blocking sends: use sends beside compute")
    if blocking_sends:
        clocks = simulate_exchanges(shape, stages)
    elif schedule == "zbv":
        clocks = simulate_events(shape, stages)
    else:
        clocks = simulate_wavefront(shape, stages)
    return _summary(shape, stages, clocks)


def _summary(
    shape: PipelineShape, stages: Sequence[StageTimes], clocks: ScheduleClocks
) -> PipelineTime:
    makespan_s = max(clocks.rank_end_s)
    busy = [0.0] * shape.ranks
    for index, stage in enumerate(stages):
        once_s = stage.forward_s + stage.backward_input_s + stage.backward_weight_s
        busy[shape.rank_of(index)] += shape.microbatches * once_s
    idle = (
        makespan_s - busy_s - exposed_s
        for busy_s, exposed_s in zip(busy, clocks.exposed_send_s, strict=True)
    )
    in_flight = held_microbatches(shape).max(axis=0)
    to_weight = in_flight
    if shape.splits_backward:
        to_weight = held_microbatches(shape, until_weight=True).max(axis=0)
    return PipelineTime(
        makespan_s=makespan_s,
        busy_s=tuple(busy),
        idle_s=tuple(max(0.0, idle_s) for idle_s in idle),
        exposed_send_s=tuple(clocks.exposed_send_s),
        rank_end_s=tuple(clocks.rank_end_s),
        last_backward_end_s=tuple(clocks.last_backward_end_s),
        in_flight=tuple(in_flight.tolist()),
        in_flight_to_weight=tuple(to_weight.tolist()),
    )
