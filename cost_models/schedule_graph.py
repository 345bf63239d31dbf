"""The dependency graph of a schedule whose messages run beside compute, action by action.

An action starts when its rank has ended the action before it and its input is there. A message
leaves when its action ends and no earlier message of the same rank in the same direction is still
under way; the receiver is always ready for it (torch's pipeline runtime posts receives as early as
it can). Stages on one rank hand over without a message.

The graph depends on the schedule and its sizes alone, so it is kept: times of a step then are one
pass through it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from cost_models.schedule_times import StageTimes
from cost_models.schedules import Action, PipelineShape, ScheduleError, rank_actions


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ScheduleGraph:
    """All actions, each behind those that it waits for; index 0 is the start of the step.

    The sequences are by action, index 0 included.

    Attributes:
        shape: of the schedule.
        rank: that runs the action.
        compute: which of ``compute_s`` it takes.
        message: which of ``message_s`` its output takes; the last one where it sends none.
        before: the action before it on its rank.
        source: the action that its input comes from; 0 where it needs none.
        queue: the action with the message before its own, by rank and direction; 0 where there is
            none.
        last_of_rank: the last action of each rank.
        last_backward: the last backward of each stage (W where the schedule splits it).
    """

    shape: PipelineShape
    rank: Sequence[int]
    compute: Sequence[int]
    message: Sequence[int]
    before: Sequence[int]
    source: Sequence[int]
    queue: Sequence[int]
    last_of_rank: Sequence[int]
    last_backward: Sequence[int]

    def compute_s(self, stages: Sequence[StageTimes]) -> list[float]:
        """Seconds of the forward of all stages, then the backward (B or I), then W."""
        backward = [stage.backward_input_s for stage in stages]
        weight = [stage.backward_weight_s for stage in stages]
        if not self.shape.splits_backward:
            backward = [sum(both) for both in zip(backward, weight, strict=True)]
        return [stage.forward_s for stage in stages] + backward + weight

    def message_s(self, stages: Sequence[StageTimes]) -> list[float]:
        """Seconds of the messages of all stages to the next one, then to the one before; then 0."""
        forward = [stage.send_forward_s for stage in stages]
        return forward + [stage.send_backward_s for stage in stages] + [0.0]

    def ends_s(self, stages: Sequence[StageTimes]) -> tuple[list[float], list[float]]:
        """When each action ends, and when its output is with the action that needs it."""
        compute_s, message_s = self.compute_s(stages), self.message_s(stages)
        ends, arrivals = [0.0], [0.0]
        rows = zip(self.compute, self.message, self.before, self.source, self.queue, strict=True)
        next(rows)
        for compute, message, before, source, queue in rows:
            end, arrival, free = ends[before], arrivals[source], arrivals[queue]
            end = (end if end > arrival else arrival) + compute_s[compute]
            ends.append(end)
            arrivals.append((end if end > free else free) + message_s[message])
        return ends, arrivals


@lru_cache(maxsize=16)
def schedule_graph(shape: PipelineShape) -> ScheduleGraph:
    """The graph of a schedule.

    Args:
        shape: the schedule and its sizes.

    Raises:
        ScheduleError: the order of the actions cannot make progress.
    """
    build = _Build(shape)
    for rank, action in _in_order(shape, build.sources):
        build.append(rank, action)
    return ScheduleGraph(
        shape=shape,
        rank=build.rank,
        compute=build.compute,
        message=build.message,
        before=build.before,
        source=build.source,
        queue=build.queue,
        last_of_rank=build.last_of_rank,
        last_backward=build.last_backward,
    )


_Key = tuple[int, int, int]  # direction (1 to the next stage, -1 to the one before), stage, batch


def _in_order(shape: PipelineShape, sources: dict[_Key, int]) -> Iterator[tuple[int, Action]]:
    """Actions with their ranks, each when its input is among the sources."""
    waiting = {rank: rank_actions(shape, rank)[::-1] for rank in range(shape.ranks)}
    while waiting:
        progress = False
        for rank, actions in list(waiting.items()):
            while actions:
                kind, stage, microbatch = actions[-1]
                if kind != "W" and (1 if kind == "F" else -1, stage, microbatch) not in sources:
                    break
                yield rank, actions.pop()
                progress = True
            if not actions:
                del waiting[rank]
        if not progress:
            raise ScheduleError(f"{shape.schedule} deadlocks at {shape}")


class _Build:
    """A graph to which actions are appended."""

    def __init__(self, shape: PipelineShape) -> None:
        self.shape = shape
        self.rank, self.compute, self.before, self.source, self.queue = ([0] for _ in range(5))
        self.message = [2 * shape.stages]
        self.last_of_rank = [0] * shape.ranks
        self.last_backward = [0] * shape.stages
        self.rank_of = [shape.rank_of(stage) for stage in range(shape.stages)]
        self.last_message = {(rank, way): 0 for rank in range(shape.ranks) for way in (1, -1)}
        self.sources: dict[_Key, int] = {}
        for microbatch in range(shape.microbatches):
            self.sources[1, 0, microbatch] = self.sources[-1, shape.stages - 1, microbatch] = 0

    def append(self, rank: int, action: Action) -> None:
        kind, stage, microbatch = action
        index, stages = len(self.rank), self.shape.stages
        self.rank.append(rank)
        self.before.append(self.last_of_rank[rank])
        self.last_of_rank[rank] = index
        if kind != "F":
            self.last_backward[stage] = index
        source, message, queue = 0, 2 * stages, 0
        if kind == "W":
            self.compute.append(2 * stages + stage)
        else:
            way, first = (1, 0) if kind == "F" else (-1, stages)
            self.compute.append(first + stage)
            source, target = self.sources.pop((way, stage, microbatch)), stage + way
            if 0 <= target < stages:
                self.sources[way, target, microbatch] = index
                if self.rank_of[target] != rank:
                    message, queue = first + stage, self.last_message[rank, way]
                    self.last_message[rank, way] = index
        self.source.append(source)
        self.message.append(message)
        self.queue.append(queue)
