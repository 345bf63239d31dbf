"""What must agree within a plan, whoever wrote it: degrees and devices, stages and blocks.

What each value may be for itself is in ``autoplan.plan_values``.
Nothing here knows the model; whether the names in a plan are those of a model is checked where the
plan meets it (``autoplan.sharding.assignment``).
"""

from __future__ import annotations

from collections import Counter

from autoplan.errors import PlanError
from autoplan.plan import Estimate, Plan, RegionPlan, StagePlan
from autoplan.plan_values import LONGEST_S, stray_value
from cost_models.schedule_times import check_times
from cost_models.schedules import PipelineShape, ScheduleError
from hardware_profiles.validation import one_line

_PARTS = ("compute_s", "exposed_comm_s", "bubble_s", "optimizer_s")
_ROUNDING = 1e-6


def check_plan(plan: Plan) -> None:
    """Refuses a plan whose parts contradict each other.

    Raises:
        PlanError: naming the first member that is wrong, as a path of the plan file.
    """
    _check_counts(plan)
    _check_ranks(plan)
    _check_regions(plan.regions)
    _check_pipeline(plan)
    if plan.stages:
        _check_stages(plan.stages, plan.regions)
    _check_estimate(plan.estimate)
    _check_timings(plan)
    _check_flows(plan)
    stray = stray_value(plan)
    if stray is not None:
        raise _wrong(*stray)


def _check_counts(plan: Plan) -> None:
    mesh, job = plan.mesh, plan.job
    counts = {f"mesh.{axis}": getattr(mesh, axis) for axis in ("pp", "dp", "cp", "ep", "tp")}
    counts |= {"job.nodes": job.nodes, "job.gpus_per_node": job.gpus_per_node}
    counts |= {"microbatch": plan.microbatch, "num_microbatches": plan.num_microbatches}
    counts |= {"replicas": plan.replicas}
    for name, count in counts.items():
        if count < 1:
            raise _wrong(name, f"{count} is less than one")
    if not 0 <= job.memory_margin < 1:
        raise _wrong("job.memory_margin", f"{job.memory_margin} is not from 0 to 1")
    if job.memory_limit_bytes is not None and job.memory_limit_bytes < 1:
        raise _wrong("job.memory_limit_bytes", f"{job.memory_limit_bytes} is none")
    if plan.zero not in range(4):
        raise _wrong("zero", f"{plan.zero} is not a stage; stages are 0 to 3")


def _check_ranks(plan: Plan) -> None:
    mesh, job = plan.mesh, plan.job
    if mesh.world_size != job.world_size:
        raise _wrong("mesh", f"its {mesh.world_size} ranks are not the job's {job.world_size}")
    if mesh.dp * plan.microbatch * plan.num_microbatches != job.global_batch:
        raise _wrong(
            "microbatch",
            f"{mesh.dp} ranks x {plan.num_microbatches} microbatches x {plan.microbatch} samples "
            f"is not the global batch of {job.global_batch}",
        )
    if mesh.dp * mesh.cp % plan.replicas:
        ranks = "dp" if mesh.cp == 1 else "dp and cp"
        raise _wrong(
            "replicas", f"{plan.replicas} does not divide the {mesh.dp * mesh.cp} ranks of {ranks}"
        )
    if len(plan.estimate.stages) != mesh.pp:
        raise _wrong("estimate.stages", f"{len(plan.estimate.stages)} for {mesh.pp} ranks of pp")


def _check_estimate(estimate: Estimate) -> None:
    if estimate.memory_limit_bytes < 1:
        raise _wrong("estimate.memory_limit_bytes", f"{estimate.memory_limit_bytes} is none")
    parts = {name: getattr(estimate, name) for name in _PARTS}
    below = next((name for name, value_s in parts.items() if value_s < 0), None)
    if below is not None:
        raise _wrong(f"estimate.{below}", f"{parts[below]} s is less than none")
    known_s = sum(parts.values())
    if not 0 < estimate.step_s < LONGEST_S or abs(known_s - estimate.step_s) > (
        _ROUNDING * estimate.step_s
    ):
        raise _wrong("estimate.step_s", f"{estimate.step_s} s is not the {known_s} s of its parts")


def _check_timings(plan: Plan) -> None:
    timings = plan.estimate.timings
    if timings and len(timings) != max(1, len(plan.stages)):
        raise _wrong("estimate.timings", f"{len(timings)} for {max(1, len(plan.stages))} stages")
    try:
        check_times([timing.times for timing in timings])
    except ScheduleError as error:
        raise _wrong("estimate.timings", one_line(str(error))) from None


def _check_flows(plan: Plan) -> None:
    """Each is of a block, and reads what enters or stands above."""
    inputs = {block: len(region.inputs) for region in plan.regions for block in region.blocks}
    for number, flow in enumerate(plan.flows):
        where = f"flows.{number}"
        if flow.block not in inputs:
            raise _wrong(f"{where}.block", f"{_named(flow.block)} is in no region")
        first = -inputs[flow.block]
        reads = [(f"operators.{n}.reads", n, o.reads) for n, o in enumerate(flow.operators)]
        for member, stop, found in (*reads, ("outputs", len(flow.operators), flow.outputs)):
            sources = (read.source for read in found if read.source is not None)
            stray = next((source for source in sources if not first <= source < stop), None)
            if stray is not None:
                raise _wrong(f"{where}.{member}", f"{stray} is none that comes before")


def _check_regions(regions: tuple[RegionPlan, ...]) -> None:
    counted = Counter(block for region in regions for block in region.blocks)
    for number, region in enumerate(regions):
        for block in region.blocks:
            if counted[block] > 1:
                raise _wrong(f"regions.{number}.blocks", f"{_named(block)} is in two places")
        blocks = frozenset(region.blocks)
        stray = next((block for block in region.recomputed if block not in blocks), None)
        if stray is not None:
            raise _wrong(f"regions.{number}.recomputed", f"{_named(stray)} is none of its blocks")
        inputs = range(len(region.inputs))
        other = next((index for index in region.reconverted_inputs if index not in inputs), None)
        if other is not None:
            raise _wrong(f"regions.{number}.reconverted_inputs", f"{other} is none of its inputs")


def _check_pipeline(plan: Plan) -> None:
    ranks, count = plan.mesh.pp, len(plan.stages)
    if (plan.schedule == "none") != (ranks == 1):
        raise _wrong("schedule", f"{_named(plan.schedule)} does not go with {ranks} ranks of pp")
    if ranks == 1:
        if plan.stages:
            raise _wrong("stages", f"{count} stages without a pipeline; pp is 1")
        return
    if count == 0:
        raise _wrong("stages", f"none for {ranks} ranks of pp")
    try:
        shape = PipelineShape(
            schedule=plan.schedule,  # pyright: ignore[reportArgumentType]
            ranks=ranks,
            stages=count,
            microbatches=plan.num_microbatches,
        )
    except ScheduleError as error:
        raise _wrong("schedule", one_line(str(error))) from None
    for number, stage in enumerate(plan.stages):
        rank = shape.rank_of(number)
        if stage.rank != rank:
            raise _wrong(
                f"stages.{number}.rank",
                f"{plan.schedule} runs this stage on rank {rank}, not {stage.rank}",
            )


def _check_stages(stages: tuple[StagePlan, ...], regions: tuple[RegionPlan, ...]) -> None:
    """The stages hold every block once, and those of a region in the region's order."""
    region_of = {block: number for number, region in enumerate(regions) for block in region.blocks}
    waiting = [iter(region.blocks) for region in regions]
    for number, stage in enumerate(stages):
        if stage.first in region_of and stage.first not in stage.blocks[:1]:
            raise _wrong(f"stages.{number}.first", f"{_named(stage.first)} is not its first block")
        for block in stage.blocks:
            if block not in region_of:
                raise _wrong(f"stages.{number}.blocks", f"{_named(block)} is in no region")
            if next(waiting[region_of[block]], None) != block:
                raise _wrong(
                    f"stages.{number}.blocks", f"{_named(block)} is out of order or stands twice"
                )
    left = next((block for blocks in waiting for block in blocks), None)
    if left is not None:
        raise _wrong("stages", f"{_named(left)} is in no stage")


def _named(text: str) -> str:
    return one_line(repr(text))


def _wrong(member: str, why: str) -> PlanError:
    return PlanError(f"plan file: {member}: {why}")
