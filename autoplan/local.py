"""The job of the ranks that run now, and its plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autoplan import launch, request
from autoplan.errors import PlanError
from autoplan.job import DEFAULT_MEMORY_MARGIN, Job, ModelSource
from autoplan.plan import Plan
from autoplan.progress import silent
from autoplan.searched import searched

if TYPE_CHECKING:
    from autoplan.trace.graph import OpGraph


def local_job(source: ModelSource, given: Mapping[str, Any]) -> Job:
    """The job on the ranks that run now.

    Args:
        given: options of ``autoplan.compile`` that were given, ``global_batch`` to
            ``memory_margin``.

    Raises:
        PlanError, ProfileError: as ``request.make_job``, and without a batch.
    """
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


def local_plan(graph: OpGraph, job: Job) -> Plan:
    """The plan for the devices that run it; says where their profile is another machine's."""
    found = searched(graph, job, silent)
    if not (foreign := launch.foreign(request.load_cluster(job.cluster))):
        return found
    warning = f"{job.cluster} was measured on another machine ({foreign}): run `autoplan profile`"
    return replace(found, warnings=(*found.warnings, warning))
