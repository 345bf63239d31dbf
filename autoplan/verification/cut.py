"""A plan carried over to a smaller graph of the same model, or to fewer ranks.

Every block of the small graph takes the region of a block of the plan, in the plan's order, so that
each distinct way to run a block of a kind is there: placements, and what is recomputed. Stages are
shared out evenly over the small blocks; a first or last stage without blocks stays one. Where the
graph is the plan's own, blocks keep their regions, and neighbouring stages are joined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from autoplan.plan import MeshPlan, Plan, RegionPlan, StagePlan
from autoplan.sharding.assignment import relative_name
from autoplan.sharding.enumerate import REPLICATE
from autoplan.sharding.placement import Replicate
from autoplan.sharding.stages import stage_starts
from autoplan.trace.graph import OpGraph
from autoplan.trace.stack import Stack, stack_of
from autoplan.verification.degrees import Degrees
from cost_models.schedules import PipelineShape

_MOST_WAYS = 8
"""Blocks of one kind that a small model has to show how a plan runs them, in order."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a block runs: its region in the plan, and whether it is recomputed."""

    region: int
    recomputed: bool


def ways(graph: OpGraph, plan: Plan) -> dict[str, list[Way]]:
    """For each kind of block, the ways in which the plan runs it, in order.

    A way that comes back has several entries, unless these would be many.
    """
    of_block = {
        path: Way(index, path in region.recomputed)
        for index, region in enumerate(plan.regions)
        for path in region.blocks
    }
    found: dict[str, list[Way]] = {}
    for kind, blocks in graph.kinds.items():
        runs = [way for way, _ in groupby(of_block[block.path] for block in blocks)]
        found[kind] = runs if len(runs) <= _MOST_WAYS else list(dict.fromkeys(runs))
    return found


def has_kinds_of(small: OpGraph, graph: OpGraph) -> bool:
    """Whether a graph has the kinds of blocks that another has, operator by operator."""

    def operators(of: OpGraph) -> list[list[str]]:
        return [
            [relative_name(kind, name) for name in blocks[0].nodes]
            for kind, blocks in of.kinds.items()
        ]

    return operators(small) == operators(graph)


def carried_over(plan: Plan, graph: OpGraph, small: OpGraph, degrees: Degrees) -> Plan:
    """The plan for ``small``, a graph with the kinds of blocks that ``graph`` has."""
    is_whole = small.fingerprint == graph.fingerprint
    regions = plan.regions if is_whole else _regions(plan, graph, small)
    stages = _joined(plan, graph, degrees) if is_whole else _shared_out(plan, small, degrees)
    job = plan.job
    return replace(
        plan,
        job=replace(
            job,
            nodes=1,
            gpus_per_node=degrees.world_size,
            global_batch=degrees.global_batch,
            precision="fp32",
        ),
        fingerprint=small.fingerprint,
        mesh=MeshPlan(pp=degrees.pp, dp=degrees.dp, tp=degrees.tp, outermost=plan.mesh.outermost),
        microbatch=degrees.microbatch,
        num_microbatches=degrees.num_microbatches,
        schedule=plan.schedule if degrees.pp > 1 else "none",
        regions=tuple(map(_whole, regions)) if degrees.tp == 1 < plan.mesh.tp else regions,
        stages=stages,
        replicas=degrees.replicas,
    )


def _regions(plan: Plan, graph: OpGraph, small: OpGraph) -> tuple[RegionPlan, ...]:
    shown = ways(graph, plan)
    found: list[RegionPlan] = [region for region in plan.regions if not region.kind]
    for kind, small_kind in zip(graph.kinds, small.kinds, strict=True):
        paths = [block.path for block in small.kinds[small_kind]]
        taken = {path: _share(shown[kind], index, len(paths)) for index, path in enumerate(paths)}
        found += _of_kind(plan, small_kind, taken)
    return tuple(found)


def _whole(region: RegionPlan) -> RegionPlan:
    """The region on one rank of tp, where nothing is split."""
    return replace(
        region,
        parameters=dict.fromkeys(region.parameters, repr(Replicate())),
        operators=dict.fromkeys(region.operators, REPLICATE),
        inputs=(repr(Replicate()),) * len(region.inputs),
        reconverted_inputs=(),
    )


def _of_kind(plan: Plan, kind: str, taken: Mapping[str, Way]) -> list[RegionPlan]:
    numbers = dict.fromkeys(way.region for way in taken.values())
    return [
        replace(
            plan.regions[number],
            kind=kind,
            blocks=tuple(path for path, way in taken.items() if way.region == number),
            recomputed=tuple(
                path for path, way in taken.items() if way.region == number and way.recomputed
            ),
        )
        for number in numbers
    ]


def _share(items: Sequence[Way], index: int, count: int) -> Way:
    """Which of the items the ``index``-th of ``count`` takes."""
    return items[index * len(items) // count]


def _joined(plan: Plan, graph: OpGraph, degrees: Degrees) -> tuple[StagePlan, ...]:
    """The plan's stages, several neighbours each made one."""
    if degrees.pp == 1:
        return ()
    stack = stack_of(graph)
    starts = stage_starts(stack, plan.stages)
    kept = [starts[index * len(starts) // degrees.stages] for index in range(degrees.stages)]
    return _stages(plan, stack, kept, degrees)


def _shared_out(plan: Plan, small: OpGraph, degrees: Degrees) -> tuple[StagePlan, ...]:
    if degrees.pp == 1:
        return ()
    stack = stack_of(small)
    blocks = [number for number, item in enumerate(stack.items) if item.kind]
    before = 0 if plan.stages[0].blocks else 1
    behind = 0 if plan.stages[-1].blocks else 1
    middle = degrees.stages - before - behind
    starts = [blocks[index * len(blocks) // middle] for index in range(middle)]
    if not before:
        starts[0] = 0
    starts = [0] * before + starts + [len(stack.items) - 1] * behind
    return _stages(plan, stack, starts, degrees)


def _stages(
    plan: Plan, stack: Stack, starts: Sequence[int], degrees: Degrees
) -> tuple[StagePlan, ...]:
    shape = PipelineShape(
        schedule=plan.schedule,  # pyright: ignore[reportArgumentType]
        ranks=degrees.pp,
        stages=degrees.stages,
        microbatches=degrees.num_microbatches,
    )
    ends = [*starts[1:], len(stack.items)]
    return tuple(
        StagePlan(
            rank=shape.rank_of(index),
            first=stack.items[start].name,
            blocks=tuple(item.name for item in stack.items[start:end] if item.kind),
        )
        for index, (start, end) in enumerate(zip(starts, ends, strict=True))
    )
