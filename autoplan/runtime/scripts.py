"""What every rank of a plan does with other ranks in a training step, from the program alone.

The order of a pipeline's messages is the one that is run (``pipeline.schedule_of``, torch's own).
Weights of a stage that ZeRO splits are gathered, and gradients reduced, unit by unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autoplan.capabilities import zero_stage
from autoplan.codegen.emitted import Emitted, EmittedStage
from autoplan.codegen.messages import StageMessage
from autoplan.codegen.orders import Collective, Event, Script, Segment, Transfer, World, world_of
from autoplan.codegen.program import Boundary
from autoplan.plan import Plan
from autoplan.runtime.pipeline import schedule_of, shape_of
from cost_models.schedules import PipelineShape


def world_of_plan(emitted: Emitted, plan: Plan) -> World:
    """The scripts of all ranks of a plan.

    Raises:
        PlanError: when the plan's schedule cannot run.
    """
    segments = [_Segments(stage, plan) for stage in emitted.stages]
    before, behind = _checks(plan), _sums(emitted, plan)
    if plan.mesh.pp == 1:
        middle = (*segments[0].count, *_one_stage(segments[0], plan))
        scripts = [Script((*before, *middle, *behind[0]))]
    else:
        shape = shape_of(plan)
        actions = schedule_of(shape, backward=True)
        scripts = [
            Script((*before, *_pipeline(segments, plan, shape, rank, actions[rank]), *behind[rank]))
            for rank in range(shape.ranks)
        ]
    mesh = plan.mesh
    return world_of(scripts, dp=mesh.dp, tp=mesh.tp, outermost=mesh.outermost)


class _Segments:
    """The events of one stage, by what it does."""

    def __init__(self, stage: EmittedStage, plan: Plan) -> None:
        self.stage = stage
        zero = zero_stage(plan.zero, pipeline=plan.mesh.pp > 1, accumulates=True)
        is_split = zero.shards_states and plan.mesh.dp > plan.replicas
        units = (*stage.unit_paths, "the rest") if is_split else ()
        self.gather = _on_dp("gather", stage, units)
        self.reduce = _on_dp("reduce", stage, reversed(units))
        self.forward = _events_of(stage.messages.forward)
        self.backward = _events_of(stage.messages.backward)
        counted = _events_of(stage.messages.count)
        summed = Collective("dp", f"sum of counts of {stage.root_class}")
        on_dp: Segment = (summed,) if plan.mesh.dp > 1 else ()
        self.count: tuple[Segment, ...] = (*(counted,) * plan.num_microbatches, on_dp)


def _on_dp(what: str, stage: EmittedStage, units: Iterator[str] | Sequence[str]) -> Segment:
    return tuple(Collective("dp", f"{what} {unit} of {stage.root_class}") for unit in units)


def _events_of(messages: Sequence[StageMessage]) -> Segment:
    return tuple(Collective(message.axis, message.what) for message in messages)


def _checks(plan: Plan) -> tuple[Segment, ...]:
    """The comparison of what ranks are fed."""
    events: list[Event] = []
    if plan.mesh.tp > 1:
        events.append(Collective("tp", "compare batches"))
    if plan.mesh.pp > 1:
        events.append(Collective("pp", "compare batches"))
    return (tuple(events),)


def _one_stage(segments: _Segments, plan: Plan) -> Iterator[Segment]:
    """Microbatches one after another; which weights stay gathered is FSDP's, alike on all ranks."""
    for index in range(plan.num_microbatches):
        is_last = index == plan.num_microbatches - 1
        yield segments.gather
        yield segments.forward
        if is_last:
            yield _loss(plan)
        yield segments.backward
        if is_last:
            yield segments.reduce


def _pipeline(
    segments: Sequence[_Segments],
    plan: Plan,
    shape: PipelineShape,
    rank: int,
    actions: Sequence[object],
) -> Iterator[Segment]:
    for number, of_stage in enumerate(segments):
        if shape.rank_of(number) == rank:
            yield from of_stage.count
    for action in actions:
        yield _events(segments, shape, action)
    yield _loss(plan)


def _loss(plan: Plan) -> Segment:
    return (Collective("dp", "sum of losses"),) if plan.mesh.dp > 1 else ()


def _events(segments: Sequence[_Segments], shape: PipelineShape, action: object) -> Segment:
    """The events of one action of torch's schedule."""
    kind: str = action.computation_type.name  # pyright: ignore[reportAttributeAccessIssue]
    number: int = action.stage_index  # pyright: ignore[reportAttributeAccessIssue]
    index: int = action.microbatch_index  # pyright: ignore[reportAttributeAccessIssue]
    own = segments[number]
    if kind in ("SEND_F", "RECV_F"):
        other = number + 1 if kind == "SEND_F" else number - 1
        crossing = own.stage.sends if kind == "SEND_F" else own.stage.receives
        return _transfer(kind, min(number, other), index, shape.rank_of(other), crossing)
    if kind in ("SEND_B", "RECV_B"):
        other = number - 1 if kind == "SEND_B" else number + 1
        crossing = own.stage.receives if kind == "SEND_B" else own.stage.sends
        learning = [boundary for boundary in crossing if boundary.requires_grad]
        return _transfer(kind, min(number, other), index, shape.rank_of(other), learning)
    return {
        "FORWARD": own.forward,
        "FULL_BACKWARD": own.backward,
        "BACKWARD_INPUT": own.backward,
        "UNSHARD": own.gather,
        "REDUCE_GRAD": own.reduce,
    }.get(kind, ())


def _transfer(
    kind: str, cut: int, microbatch: int, peer: int, crossing: Sequence[Boundary]
) -> Segment:
    """Tensors, or their gradients, across the cut behind a stage."""
    way = "activations" if kind.endswith("F") else "gradients"
    shapes = ", ".join(f"{'x'.join(map(str, b.shape))} {b.dtype}" for b in crossing)
    what = f"{way} of microbatch {microbatch} behind stage {cut} ({shapes})"
    return (Transfer("send" if kind.startswith("SEND") else "receive", peer, what),)


def _sums(emitted: Emitted, plan: Plan) -> list[tuple[Segment, ...]]:
    """Behind the backward: gradients that several ranks hold whole, statistics, the loss over pp.

    Sums of gradients that start sooner do so where the backward sends nothing over ``dp``.
    """
    pp, dp = plan.mesh.pp, plan.mesh.dp
    holders: dict[str, set[int]] = {}
    for stage in emitted.stages:
        for name in stage.parameters:
            holders.setdefault(name, set()).add(stage.rank)
    shared = sorted({tuple(sorted(ranks)) for ranks in holders.values() if len(ranks) > 1})
    loss: Segment = (Collective("pp", "sum of losses"),) if pp > 1 else ()
    on_dp: Segment = (Collective("dp", "sum of whole gradients"),) if dp > 1 else ()
    moved: Segment = (Collective("dp", "sum of running statistics"),) if dp > 1 else ()
    averaging = {stage.rank for stage in emitted.stages if stage.averaged}
    return [
        (
            on_dp,
            tuple(
                Collective("pp", "sum of shared gradients", places)
                for places in shared
                if rank in places
            ),
            moved if rank in averaging else (),
            loss,
        )
        for rank in range(pp)
    ]
