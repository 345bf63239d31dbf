"""The plan of a job: searched, and told what keeps it from running; and the job of the ranks that
run now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autoplan import request
from autoplan.capabilities import RUNNABLE_PRECISIONS
from autoplan.errors import PlanError
from autoplan.job import DEFAULT_MEMORY_MARGIN, Job, ModelSource
from autoplan.plan import Plan
from autoplan.progress import Progress, silent

if TYPE_CHECKING:
    from autoplan.search.deadline import Deadline
    from autoplan.trace.graph import OpGraph


def searched(graph: OpGraph, job: Job, tell: Progress, deadline: Deadline | None = None) -> Plan:
    """The plan of a job, with what keeps it from running."""
    from autoplan.search.planner import plan_job

    cluster = request.cluster_of(job)
    found = plan_job(graph, job, cluster, progress=tell, deadline=deadline)
    return replace(found, warnings=tuple(_obstacles(graph, found)))


def searched_here(graph: OpGraph, job: Job) -> Plan:
    """The plan for the devices that run it; says where their profile is another machine's."""
    from autoplan import launch

    found = searched(graph, job, silent)
    if not (foreign := launch.foreign(request.load_cluster(job.cluster))):
        return found
    warning = f"{job.cluster} was measured on another machine ({foreign}): run `autoplan profile`"
    return replace(found, warnings=(*found.warnings, warning))


def local_job(source: ModelSource, given: Mapping[str, Any]) -> Job:
    """The job on the ranks that run now."""
    from autoplan import launch

    if "global_batch" not in given:
        raise PlanError("give global_batch=, the samples per optimizer step, or plan=")
    nodes, ranks_per_node = launch.local_shape()
    return request.make_job(
        source,
        cluster=given.get("cluster") or launch.local_cluster(nodes, ranks_per_node),
        nodes=nodes,
        gpus_per_node=ranks_per_node,
        global_batch=given["global_batch"],
        precision=given.get("precision", "bf16"),
        optimizer=given.get("optimizer", "adamw"),
        batch_norm=given.get("batch_norm", "sync"),
        pins=request.make_pins(given.get("pins")),
        placements=given.get("placements"),
        memory_limit=given.get("memory_limit"),
        memory_margin=given.get("memory_margin", DEFAULT_MEMORY_MARGIN),
    )


def _obstacles(graph: OpGraph, plan: Plan) -> Iterator[str]:
    """What keeps a plan from running as it stands."""
    from autoplan.codegen.checks import randomness
    from autoplan.codegen.runnable import obstacle

    if plan.job.precision not in RUNNABLE_PRECISIONS:
        yield f"{plan.job.precision} is planned only; run it in {' or '.join(RUNNABLE_PRECISIONS)}"
    random = randomness(graph)
    if random and (plan.job.world_size > 1 or plan.num_microbatches > 1):
        yield f"this plan cannot run yet: {random}, and plan again"
    if reason := obstacle(graph, plan):
        yield f"this plan cannot run yet: {reason}"
