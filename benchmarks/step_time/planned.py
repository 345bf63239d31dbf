"""The same parallelism as a recipe's, and the planner's own choice, as autoplan runs them."""

from __future__ import annotations

import autoplan
from autoplan.plan import Plan
from benchmarks.step_time.model import GLOBAL_BATCH, batch, build
from benchmarks.step_time.recipes import Recipe, Training


def plan_like(recipe: Recipe, cluster: str) -> Plan:
    """The plan under the recipe's mesh, ZeRO stage and microbatches; the rest is chosen."""
    pins = {
        "pp": recipe.pp,
        "dp": recipe.dp,
        "tp": recipe.tp,
        "microbatch": GLOBAL_BATCH // (recipe.dp * recipe.microbatches),
        "zero": recipe.zero,
        "recompute": "none",
    }
    schedule = {"schedule": "1f1b"} if recipe.pp > 1 else {}
    return _plan(recipe.ranks, cluster, pins | schedule)


def plan_freely(ranks: int, cluster: str) -> Plan:
    """What the planner chooses."""
    return _plan(ranks, cluster, {})


def words(plan: Plan) -> str:
    mesh = plan.mesh
    return (
        f"pp {mesh.pp} x dp {mesh.dp} x tp {mesh.tp}, ZeRO {plan.zero}, "
        f"{plan.num_microbatches} microbatches"
    )


def by_plan(plan: Plan) -> Training:
    """This rank's part of a plan, on a fresh model."""
    module = autoplan.compile(build(), batch(), plan=plan)
    fed = module.shard_batch(batch())
    return Training(module.parameters(), lambda: module.train_step(fed))


def _plan(ranks: int, cluster: str, pins: dict[str, int | str]) -> Plan:
    return autoplan.plan(
        build(),
        batch(),
        cluster=cluster,
        gpus_per_node=ranks,
        global_batch=GLOBAL_BATCH,
        precision="fp32",
        pins=pins,
    )
