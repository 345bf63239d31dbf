"""What a plan's training would be on other nodes, and at its largest: kept with the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autoplan import request
from autoplan.errors import PlanError
from autoplan.job import Job
from autoplan.plan import Plan
from autoplan.plan_details import Outlook, ScalingPoint
from autoplan.plurals import counted
from autoplan.progress import Progress, silent
from autoplan.traced_job import SEARCHING, TracedJob


def outlook(
    plan: Plan,
    *,
    nodes: Sequence[int] = (),
    grow_batch: bool = False,
    limits: bool = False,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
) -> Plan:
    """The plan with what was found of other sizes of its training (``Plan.outlook``).

    The model is loaded and traced again, so that user code is run if the plan is for that.

    Args:
        plan: of a model by name.
        nodes: on which to plan the same training, ascending.
        grow_batch: the batch grows with the nodes, that of the plan being for the plan's nodes.
        limits: look for the largest microbatch and the longest samples that fit.
        time_limit_s: of the search of each plan.
        progress: called with the fraction done and what is being done.

    Raises:
        PlanError, UnsupportedModelError: as ``sweep``, and a plan of a module made in Python.
    """
    from autoplan.sizing.sweeps import largest_microbatch

    job, tell = plan.job, progress or silent
    if job.model.kind == "object":
        raise PlanError(
            f"{job.model.name} was made in Python: other sizes are for models that have a name"
        )
    request.check_nodes(job.cluster, nodes)
    made = TracedJob(job, tell)
    scaling = []
    for number, count in enumerate(nodes):
        told = f"planning on {counted(count, 'node')}"
        tell(SEARCHING + (1 - SEARCHING) * number / len(nodes), told)
        batch = max(1, job.global_batch * count // job.nodes) if grow_batch else job.global_batch
        other = replace(job, nodes=count, global_batch=batch)
        scaling.append(_scaled(made, plan, other, time_limit_s))
    if limits:
        tell(1.0, "looking for the largest that fits")
    largest = largest_microbatch(made.series, plan) if limits else None
    longest = made.longest_sequence(job) if limits else None
    return replace(
        plan,
        outlook=Outlook(
            scaling=tuple(scaling),
            largest_microbatch=largest and largest.short,
            longest_sequence=longest and longest.short,
        ),
    )


def _scaled(made: TracedJob, plan: Plan, job: Job, time_limit_s: float | None) -> ScalingPoint:
    """The plan's own point, or that of the same training on other nodes."""
    from autoplan.sizing.sweeps import Point, point_of

    own = Point(job=job, plan=plan)
    point = own if job == plan.job else point_of(made.series, job, time_limit_s)
    estimate = point.plan and point.plan.estimate
    return ScalingPoint(
        nodes=job.nodes,
        devices=job.world_size,
        global_batch=job.global_batch,
        samples_per_s=estimate and estimate.samples_per_s,
        step_s=estimate and estimate.step_s,
        reason=point.reason,
    )
