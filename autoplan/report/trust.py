"""How far a plan's figures can be trusted: what was proven, and what the model misses.

``STEP_ERRORS`` are those of ``benchmarks/data/training.csv``: published training steps of quality A
and B on a device (single layers left out), predicted by the same cost models (``docs/costs.md``).
The models' constants were fitted on some of these runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoplan.plan import Alternative, Plan
from autoplan.report import units
from hardware_profiles.spec import ClusterSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class StepError:
    """Of ``|predicted / measured - 1|`` over so many published steps."""

    runs: int
    median: float
    p90: float


STEP_ERRORS = {
    "A100-SXM4-80GB": StepError(runs=148, median=0.054, p90=0.124),
    "H100-SXM5-80GB": StepError(runs=30, median=0.027, p90=0.091),
    "H100-SXM5-96GB": StepError(runs=18, median=0.046, p90=0.126),
}
"""By name of the device."""


def step_error(cluster: ClusterSpec | None) -> StepError | None:
    """The error on published runs of a cluster's device; None where there are none."""
    return STEP_ERRORS.get(cluster.device.name) if cluster else None


def error_sentence(cluster: ClusterSpec | None) -> str:
    """What is known of the model's error on a cluster."""
    error = step_error(cluster)
    if cluster is None or error is None:
        return "No published training steps on this device: the error of the model is not known."
    return (
        f"{error.runs} published training steps on {cluster.device.name} are predicted with a "
        f"median error of {units.percent(error.median)}; nine in ten are within "
        f"{units.percent(error.p90)}."
    )


def within_error(plan: Plan, error: StepError) -> tuple[Alternative, ...]:
    """Other plans that fit and are slower by no more than the model's median error."""
    most_s = plan.estimate.step_s * (1 + error.median)
    return tuple(
        other
        for other in plan.alternatives
        if other.fits and other.step_s is not None and other.step_s <= most_s
    )


def gap_sentence(plan: Plan) -> str:
    """What the search has proven, rounded against the plan."""
    search = plan.search
    if search.gap <= 0:
        return "No plan in the space is faster by the same cost model."
    digits = 1000 if search.gap < 0.099 else 100
    gap = units.percent(math.ceil(search.gap * digits) / digits)
    return (
        f"No plan in the space takes less than {units.seconds(search.lower_bound_s)} by the"
        f" same cost model: this one is within {gap} of the best."
    )
