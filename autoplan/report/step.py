"""One training step as it was simulated: what each rank of the pipeline does, and when.

The simulation is run again on the seconds that the plan holds of each stage, so that it ends when
the plan says. The head is what shows of gathering weights before the first forward of all ranks;
behind a rank's last backward come the sums of gradients that show, and the optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from autoplan.plan import Plan, StageTiming
from cost_models.schedule_graph import ScheduleGraph, schedule_graph
from cost_models.schedules import Action, PipelineShape, ScheduleName, rank_actions

SpanKind = Literal["F", "B", "I", "W", "head", "tail", "optimizer"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Something that one rank does; seconds from the start of the step.

    Attributes:
        kind: an action (``cost_models.schedules``), or what comes before and behind them all.
        stage, microbatch: of an action; else None.
        messages_s: of an action, what messages over ``tp`` and ``dp`` add to it.
    """

    rank: int
    kind: SpanKind
    start_s: float
    stop_s: float
    stage: int | None = None
    microbatch: int | None = None
    messages_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.stop_s - self.start_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """A message between stages, under way from ``start_s`` to ``stop_s``.

    Attributes:
        rank: of the sender.
        to_next: whether it goes to the next stage, with activations, or to the one before.
    """

    rank: int
    stage: int
    microbatch: int
    to_next: bool
    start_s: float
    stop_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Spans by rank, in order of time; a rank's do not overlap, nor its deliveries one way."""

    shape: PipelineShape
    spans: tuple[tuple[Span, ...], ...]
    deliveries: tuple[Delivery, ...]

    @property
    def stop_s(self) -> float:
        return max(spans[-1].stop_s for spans in self.spans)


def step_of(plan: Plan) -> Step | None:
    """The step of a plan; None where the plan file is older than such seconds are."""
    timings, head_s = plan.estimate.timings, plan.estimate.head_s
    if not timings:
        return None
    shape = shape_of(plan)
    graph = schedule_graph(shape)
    ends, arrivals = graph.ends_s([timing.times for timing in timings])
    by_rank: list[list[Span]] = [[] for _ in range(shape.ranks)]
    deliveries = []
    for index, rank, action in _actions(graph):
        start_s = head_s + max(ends[graph.before[index]], arrivals[graph.source[index]])
        stop_s = head_s + ends[index]
        timing = timings[action.stage]
        by_rank[rank].append(
            Span(
                rank=rank,
                kind=action.kind,
                start_s=start_s,
                stop_s=stop_s,
                stage=action.stage,
                microbatch=action.microbatch,
                messages_s=min(max(0.0, _messages_s(action.kind, timing)), stop_s - start_s),
            )
        )
        if graph.message[index] < 2 * shape.stages:
            arrives_s = head_s + arrivals[index]
            deliveries.append(_delivery(rank, action, timing, stop_s, arrives_s))
    return Step(
        shape=shape,
        spans=tuple(
            (*_head(rank, head_s), *spans, *_behind(shape, rank, spans, timings))
            for rank, spans in enumerate(by_rank)
        ),
        deliveries=tuple(deliveries),
    )


def shape_of(plan: Plan) -> PipelineShape:
    """The schedule and its sizes; without a pipeline, one stage's microbatches in turn."""
    schedule = "1f1b" if plan.schedule == "none" else plan.schedule
    return PipelineShape(
        schedule=cast(ScheduleName, schedule),
        ranks=plan.mesh.pp,
        stages=max(1, len(plan.stages)),
        microbatches=plan.num_microbatches,
    )


def _actions(graph: ScheduleGraph) -> Iterator[tuple[int, int, Action]]:
    """Number in the graph and rank of all actions, in its order."""
    waiting = [iter(rank_actions(graph.shape, rank)) for rank in range(graph.shape.ranks)]
    for index, rank in enumerate(graph.rank[1:], 1):
        yield index, rank, next(waiting[rank])


def _messages_s(kind: str, timing: StageTiming) -> float:
    """Of a split backward, its parts' shares."""
    if kind == "F":
        return timing.forward_messages_s
    if kind == "B":
        return timing.backward_messages_s
    weight_s = timing.times.backward_weight_s
    both_s = timing.times.backward_input_s + weight_s
    share = weight_s / both_s if both_s else 0.0
    return timing.backward_messages_s * (share if kind == "W" else 1 - share)


def _delivery(
    rank: int, action: Action, timing: StageTiming, leaves_s: float, arrives_s: float
) -> Delivery:
    to_next = action.kind == "F"
    times = timing.times
    message_s = times.send_forward_s if to_next else times.send_backward_s
    return Delivery(
        rank=rank,
        stage=action.stage,
        microbatch=action.microbatch,
        to_next=to_next,
        start_s=max(leaves_s, arrives_s - message_s),
        stop_s=arrives_s,
    )


def _head(rank: int, head_s: float) -> Iterator[Span]:
    if head_s > 0:
        yield Span(rank=rank, kind="head", start_s=0.0, stop_s=head_s)


def _behind(
    shape: PipelineShape, rank: int, spans: Sequence[Span], timings: Sequence[StageTiming]
) -> Iterator[Span]:
    """Sums of gradients that outlast the rank's last action, then its optimizer."""
    own = [stage for stage in range(shape.stages) if shape.rank_of(stage) == rank]
    backward = {span.stage: span.stop_s for span in spans if span.kind != "F"}
    start_s = spans[-1].stop_s
    stop_s = max(start_s, *(backward[stage] + timings[stage].tail_s for stage in own))
    if stop_s > start_s:
        yield Span(rank=rank, kind="tail", start_s=start_s, stop_s=stop_s)
    optimizer_s = sum(timings[stage].optimizer_s for stage in own)
    if optimizer_s > 0:
        yield Span(rank=rank, kind="optimizer", start_s=stop_s, stop_s=stop_s + optimizer_s)
