"""Why a plan cannot run, said once for those who make plans and those who run them."""

from __future__ import annotations

from autoplan.capabilities import RUNNABLE_SCHEDULES, runs
from autoplan.codegen.again import again_obstacle
from autoplan.plan import Plan
from autoplan.sharding.split_backward import split_obstacle
from autoplan.trace.graph import OpGraph


def obstacle(graph: OpGraph, plan: Plan) -> str | None:
    """What of a plan's decisions the runtime does not do, with the cure; None when it does all.

    Raises:
        PlanError: when the plan's stages are no ranges of the model.
    """
    if plan.mesh.cp > 1:
        return (
            f"the plan has cp = {plan.mesh.cp}, and no run splits tokens over ranks of their own "
            "yet: plan with cp = 1"
        )
    if (plan.mesh.pp > 1) != bool(plan.stages):
        return (
            f"the plan has pp = {plan.mesh.pp} and {len(plan.stages)} stages: give every rank of "
            "the pipeline a stage, or plan with pp = 1"
        )
    recomputes = any(
        region.recomputed or region.recomputed_operators or region.reconverted_inputs
        for region in plan.regions
    )
    reason = runs(plan.schedule, zero=plan.zero, recomputes=recomputes)
    reason = reason or again_obstacle(graph, plan.regions)
    if reason is None and RUNNABLE_SCHEDULES[plan.schedule].splits_backward:
        found = split_obstacle(graph, plan.stages)
        if found is not None:
            reason = (
                f"schedule {plan.schedule} splits the backward, which would lose gradients here "
                f"({found}): use 1f1b or interleaved_1f1b"
            )
    return reason
