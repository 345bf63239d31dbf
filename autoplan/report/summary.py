"""The machine-readable summary of a plan that ``--json`` prints.

``recompute`` is an object: ``mode`` is ``none``, ``partial`` or ``full``, ``recomputed_blocks`` of
``blocks`` run their forward again in the backward; of the others, ``operators`` tells which calls
do, by blocks that are alike in it (no blocks: the rest of the model). ``search.seconds`` is None
for a plan that was read from a file, since plan files hold no wall times. ``memory_over_step`` and
``trust`` are worked out from the plan and its profile. Numbers are SI: seconds and bytes.
``summary_types`` has the types of it all, ``docs/report.schema.json`` the schema.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Literal

from autoplan.plan import Plan
from autoplan.plan_details import Outlook
from autoplan.report.assumptions import installed_profile
from autoplan.report.fold import parameter_rows
from autoplan.report.held_memory import held_memory
from autoplan.report.schedules import stages_per_rank
from autoplan.report.step import step_of
from autoplan.report.trust import step_error, within_error
from hardware_profiles.spec import ClusterSpec

if TYPE_CHECKING:
    from autoplan.report.summary_types import (
        OperatorsAgain,
        Profile,
        RankOverStep,
        Recompute,
        Trust,
    )


def summary(plan: Plan, *, search_s: float | None = None) -> dict[str, Any]:
    """The plan's decisions and estimate as plain dicts, lists and numbers.

    Args:
        search_s: wall time of making the plan, loading and tracing included, if it was made now.
    """
    cluster = installed_profile(plan)
    return {
        "model": {"kind": plan.job.model.kind, "name": plan.job.model.name},
        "job": _job(plan),
        "mesh": asdict(plan.mesh),
        "zero": plan.zero,
        "replicas": plan.replicas,
        "microbatch": plan.microbatch,
        "num_microbatches": plan.num_microbatches,
        "schedule": plan.schedule,
        "stages_per_rank": stages_per_rank(plan),
        "stages": [asdict(stage) for stage in plan.stages],
        "recompute": _recompute(plan),
        "placements": [
            {"parameter": name, "placement": placement}
            for name, placement in parameter_rows(plan.regions)
        ],
        "estimate": _estimate(plan),
        "search": {
            "seconds": search_s,
            "gap": plan.search.gap,
            "lower_bound_s": plan.search.lower_bound_s,
            "candidates": plan.search.candidates,
            "space": plan.search.space,
        },
        "alternatives": [asdict(other) for other in plan.alternatives],
        "warnings": list(plan.warnings),
        "opaque": [asdict(operator) for operator in plan.opaque],
        "flows": [asdict(flow) for flow in plan.flows],
        "outlook": _outlook(plan.outlook),
        "memory_over_step": _memory_over_step(plan),
        "profile": _profile(plan, cluster),
        "trust": _trust(plan, cluster),
    }


def _job(plan: Plan) -> dict[str, Any]:
    """What was asked for: devices, batch, numbers' precision, limits, and what was given."""
    record = asdict(plan.job)
    del record["model"]
    record["seq_len"] = plan.job.model.seq_len
    record["pins"] = {name: value for name, value in record["pins"].items() if value is not None}
    record["placements"] = dict(plan.job.placements)
    return record


def _recompute(plan: Plan) -> Recompute:
    blocks = sum(len(region.blocks) for region in plan.regions)
    recomputed = sum(len(region.recomputed) for region in plan.regions)
    operators: list[OperatorsAgain] = [
        {
            "blocks": [block for block in region.blocks if block not in region.recomputed],
            "operators": list(region.recomputed_operators),
        }
        for region in plan.regions
        if region.recomputed_operators
    ]
    mode: Literal["none", "partial", "full"] = "partial"
    if recomputed in (0, blocks) and not operators:
        mode = "full" if recomputed else "none"
    return {
        "mode": mode,
        "recomputed_blocks": recomputed,
        "blocks": blocks,
        "operators": operators,
    }


def _estimate(plan: Plan) -> dict[str, Any]:
    estimate = plan.estimate
    record = asdict(
        replace(
            estimate,
            comm_s=dict(estimate.comm_s),
            comm_bytes=dict(estimate.comm_bytes),
            comm_counts=dict(estimate.comm_counts),
            exposed_by_axis_s=dict(estimate.exposed_by_axis_s),
        )
    )
    for rank, each in zip(record["stages"], estimate.stages, strict=True):
        rank["memory"]["total"] = each.memory.total
    return record


def _memory_over_step(plan: Plan) -> list[RankOverStep]:
    """By rank; empty where the plan file is too old."""
    step = step_of(plan)
    if step is None:
        return []
    found = [held_memory(plan, step, rank) for rank in range(plan.mesh.pp)]
    return [
        {
            "rank": rank,
            "always_bytes": held.always_bytes,
            "passing_bytes": held.passing_bytes,
            "activations_bytes": held.most_activations_bytes,
            "moments": list(held.moments),
        }
        for rank, held in enumerate(found)
    ]


def _outlook(outlook: Outlook | None) -> dict[str, Any] | None:
    """With ``T_n / (n T_1)`` at each point."""
    if outlook is None:
        return None
    return {
        **asdict(outlook),
        "scaling": [
            asdict(point) | {"scaling": outlook.scaling_of(point)} for point in outlook.scaling
        ],
    }


def _profile(plan: Plan, cluster: ClusterSpec | None) -> Profile | None:
    """The profile as it is now, None where it is not installed."""
    if cluster is None:
        return None
    return {
        "device": cluster.device.name,
        "changed": cluster.digest != plan.profile_digest,
        "values": dict(Counter(cluster.provenance.values())),
        "price_per_gpu_hour_usd": cluster.price_per_gpu_hour_usd,
    }


def _trust(plan: Plan, cluster: ClusterSpec | None) -> Trust | None:
    """The model's error on published steps, and the plans that it cannot tell from this one."""
    error = step_error(cluster)
    if error is None:
        return None
    near = [other.name for other in within_error(plan, error)]
    return {"runs": error.runs, "median": error.median, "p90": error.p90, "within_error": near}
