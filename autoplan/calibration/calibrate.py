"""From a plan to the profile under which it would have been predicted as it was measured."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

from autoplan.calibration.calibrated import Calibrated
from autoplan.calibration.corrected import corrected
from autoplan.calibration.factors import factors_of
from autoplan.calibration.run import measure_plan
from autoplan.errors import PlanError, ProfileError
from autoplan.plan import Plan
from autoplan.profiler.machine import differences, this_machine
from autoplan.trace.graph import OpGraph
from autoplan.zoo import ModelUnderPlan
from hardware_profiles.load import ProfileFault, digest, load, load_facts
from hardware_profiles.schema import ProfileFacts


def profile_of(plan: Plan) -> ProfileFacts:
    """The profile that a plan was made with.

    Raises:
        ProfileError: it cannot be read, or was measured on another machine.
        PlanError: it changed since.
    """
    try:
        facts, machine = load_facts(plan.job.cluster), load(plan.job.cluster).machine
    except ProfileFault as fault:
        raise ProfileError(str(fault)) from None
    if digest(facts) != plan.profile_digest:
        raise PlanError(
            f"the profile {plan.job.cluster} changed since the plan was made; plan again"
        )
    here = this_machine()
    foreign = differences(replace(machine, threads=here.threads), here) if machine else ""
    if foreign:
        raise ProfileError(
            f"{plan.job.cluster} was measured on another machine ({foreign}): run `autoplan "
            "profile` here and plan again"
        )
    return facts


def calibrate_plan(
    plan: Plan, case: ModelUnderPlan, graph: OpGraph, *, steps: int, today: date
) -> Calibrated:
    """Trains by the plan here and corrects its profile.

    Raises:
        PlanError, ProfileError: as ``profile_of`` and ``measure_plan``.
    """
    facts = profile_of(plan)
    found = measure_plan(plan, case, graph, steps)
    factors = factors_of(plan, found)
    mesh = plan.mesh
    words = (
        f"calibrated {today.isoformat()} on {plan.job.model.name}, "
        f"pp {mesh.pp} x dp {mesh.dp} x tp {mesh.tp}, ZeRO {plan.zero}"
    )
    made = corrected(facts, factors, words)
    return Calibrated(plan=plan, measured=found, factors=factors, profile=made)
