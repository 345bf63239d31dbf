"""The plan of a job: searched, and told what keeps it from running."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from autoplan import request
from autoplan.capabilities import RUNNABLE_PRECISIONS
from autoplan.job import Job
from autoplan.plan import Plan
from autoplan.progress import Progress

if TYPE_CHECKING:
    from autoplan.search.deadline import Deadline
    from autoplan.trace.graph import OpGraph


def searched(graph: OpGraph, job: Job, tell: Progress, deadline: Deadline | None = None) -> Plan:
    """The plan of a job, with what keeps it from running."""
    from autoplan.search.planner import plan_job

    cluster = request.cluster_of(job)
    found = plan_job(graph, job, cluster, progress=tell, deadline=deadline)
    return replace(found, warnings=tuple(_obstacles(graph, found)))


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
