"""Exact simulation of a schedule whose messages run beside compute, action by action.

An action starts when its rank has ended the action before it and its input is there. A message
leaves when its action ends and no earlier message of the same rank in the same direction is still
under way; the receiver is always ready for it (torch's pipeline runtime posts receives as early as
it can). Stages on one rank hand over without a message. ``schedule_wavefront`` gives the same for
all schedules but ``zbv``, a hundred times faster.
"""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.schedule_times import ScheduleClocks, StageTimes
from cost_models.schedules import Action, PipelineShape, ScheduleError, rank_actions

_Direction = int  # 1 to the next stage, -1 to the stage before


class _Run:
    """The state of a simulation: clocks of ranks and channels, and inputs that have come."""

    def __init__(self, shape: PipelineShape, stages: Sequence[StageTimes]) -> None:
        self.shape = shape
        self.stages = stages
        self.clock = [0.0] * shape.ranks
        self.exposed = [0.0] * shape.ranks
        self.last_backward = [0.0] * shape.stages
        self.channel = {(rank, way): 0.0 for rank in range(shape.ranks) for way in (1, -1)}
        self.ready: dict[tuple[_Direction, int, int], tuple[float, float]] = {}
        for microbatch in range(shape.microbatches):
            self.ready[1, 0, microbatch] = (0.0, 0.0)
            self.ready[-1, shape.stages - 1, microbatch] = (0.0, 0.0)

    def run(self, rank: int, action: Action) -> bool:
        """Run an action, or say that its input is not there yet."""
        kind, stage, microbatch = action
        times = self.stages[stage]
        if kind == "W":
            self.clock[rank] += times.backward_weight_s
            self.last_backward[stage] = self.clock[rank]
            return True
        way = 1 if kind == "F" else -1
        input_times = self.ready.pop((way, stage, microbatch), None)
        if input_times is None:
            return False
        computed_s, arrival_s = input_times
        start_s = max(self.clock[rank], arrival_s)
        self.exposed[rank] += start_s - max(self.clock[rank], computed_s)
        if kind == "F":
            end_s = start_s + times.forward_s
        else:
            end_s = start_s + times.backward_input_s
            if kind == "B":
                end_s += times.backward_weight_s
            self.last_backward[stage] = end_s
        self.clock[rank] = end_s
        self._send(rank, way, action)
        return True

    def _send(self, rank: int, way: _Direction, action: Action) -> None:
        target = action.stage + way
        if not 0 <= target < self.shape.stages:
            return
        computed_s = arrival_s = self.clock[rank]
        if self.shape.rank_of(target) != rank:
            times = self.stages[action.stage]
            send_s = times.send_forward_s if way == 1 else times.send_backward_s
            arrival_s = max(computed_s, self.channel[rank, way]) + send_s
            self.channel[rank, way] = arrival_s
        self.ready[way, target, action.microbatch] = (computed_s, arrival_s)


def simulate_events(shape: PipelineShape, stages: Sequence[StageTimes]) -> ScheduleClocks:
    """Clocks of a schedule with messages beside compute.

    Args:
        shape: the schedule and its sizes.
        stages: times of each stage, in the model's order.

    Raises:
        ScheduleError: the order of the actions cannot make progress.
    """
    run = _Run(shape, stages)
    waiting = {rank: rank_actions(shape, rank)[::-1] for rank in range(shape.ranks)}
    while waiting:
        progress = False
        for rank, actions in list(waiting.items()):
            while actions and run.run(rank, actions[-1]):
                actions.pop()
                progress = True
            if not actions:
                del waiting[rank]
        if not progress:
            raise ScheduleError(f"{shape.schedule} deadlocks at {shape}")
    return ScheduleClocks(
        rank_end_s=run.clock,
        last_backward_end_s=run.last_backward,
        exposed_send_s=run.exposed,
    )
