"""The machine-readable summary of a plan that ``--json`` prints.

``recompute`` is an object: ``mode`` is ``none``, ``partial`` or ``full``, ``recomputed_blocks`` of
``blocks`` run their forward again in the backward; of the others, ``operators`` tells which calls
do, by blocks that are alike in it (no blocks: the rest of the model). ``search.seconds`` is None
for a plan that was read from a file, since plan files hold no wall times. Numbers are SI: seconds
and bytes.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from autoplan.plan import Plan
from autoplan.report.fold import parameter_rows
from autoplan.report.schedules import stages_per_rank


def summary(plan: Plan, *, search_s: float | None = None) -> dict[str, Any]:
    """The plan's decisions and estimate as plain dicts, lists and numbers.

    Args:
        search_s: wall time of making the plan, loading and tracing included, if it was made now.
    """
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
    }


def _job(plan: Plan) -> dict[str, Any]:
    """What was asked for: devices, batch, numbers' precision, limits, and what was given."""
    record = asdict(plan.job)
    del record["model"]
    record["seq_len"] = plan.job.model.seq_len
    record["pins"] = {name: value for name, value in record["pins"].items() if value is not None}
    record["placements"] = dict(plan.job.placements)
    return record


def _recompute(plan: Plan) -> dict[str, Any]:
    blocks = sum(len(region.blocks) for region in plan.regions)
    recomputed = sum(len(region.recomputed) for region in plan.regions)
    operators = [
        {
            "blocks": [block for block in region.blocks if block not in region.recomputed],
            "operators": list(region.recomputed_operators),
        }
        for region in plan.regions
        if region.recomputed_operators
    ]
    mode = "partial"
    if recomputed in (0, blocks) and not operators:
        mode = "full" if recomputed else "none"
    return {
        "mode": mode,
        "recomputed_blocks": recomputed,
        "blocks": blocks,
        "operators": operators,
    }


def _estimate(plan: Plan) -> dict[str, Any]:
    record = asdict(replace(plan.estimate, comm_s=dict(plan.estimate.comm_s)))
    for rank, estimate in zip(record["stages"], plan.estimate.stages, strict=True):
        rank["memory"]["total"] = estimate.memory.total
    return record
