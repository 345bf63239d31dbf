"""The machine-readable summary of a plan that ``--json`` prints.

``recompute`` is an object: ``mode`` is ``none``, ``partial`` or ``full``, ``recomputed_blocks`` of
``blocks`` run their forward again in the backward. ``search.seconds`` is None for a plan that was
read from a file, since plan files hold no wall times. Numbers are SI: seconds and bytes.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from autoplan.plan import Plan


def summary(plan: Plan, *, search_s: float | None = None) -> dict[str, Any]:
    """The plan's decisions and estimate as plain dicts, lists and numbers.

    Args:
        search_s: wall time of making the plan, loading and tracing included, if it was made now.
    """
    return {
        "model": {"kind": plan.job.model.kind, "name": plan.job.model.name},
        "mesh": asdict(plan.mesh),
        "zero": plan.zero,
        "microbatch": plan.microbatch,
        "num_microbatches": plan.num_microbatches,
        "schedule": plan.schedule,
        "recompute": _recompute(plan),
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
    }


def _recompute(plan: Plan) -> dict[str, Any]:
    blocks = sum(len(region.blocks) for region in plan.regions)
    recomputed = sum(len(region.recomputed) for region in plan.regions)
    mode = "none" if not recomputed else "full" if recomputed == blocks else "partial"
    return {"mode": mode, "recomputed_blocks": recomputed, "blocks": blocks}


def _estimate(plan: Plan) -> dict[str, Any]:
    estimate = plan.estimate
    record = {field.name: getattr(estimate, field.name) for field in fields(estimate)}
    record["comm_s"] = dict(estimate.comm_s)
    record["stages"] = [
        {
            "devices": stage.devices,
            "compute_s": stage.compute_s,
            "memory": asdict(stage.memory) | {"total": stage.memory.total},
        }
        for stage in estimate.stages
    ]
    return record
