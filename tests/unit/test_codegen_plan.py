"""From a plan to emitted source."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.codegen.choices import Choices
from autoplan.codegen.pipeline import emit_choices, emit_program
from autoplan.errors import PlanError
from autoplan.plan import MeshPlan, Plan
from autoplan.sharding.assignment import regions_of
from autoplan.sharding.placement import Shard
from tests.parity.cases import BATCH, case
from tests.parity.choose import recipe
from tests.parity.test_recipes import MEGATRON, VOCABULARY
from tests.unit.sample_plan import PLAN


def planned(choices: Choices) -> Plan:
    """A plan that holds these choices."""
    drawn = choices.assignment
    regions = regions_of(
        choices.graph,
        {name: strategy.label for name, strategy in drawn.strategies.items()},
        drawn.storage,
        drawn.entries,
        choices.recomputed,
    )
    plan = PLAN
    return replace(
        plan,
        job=replace(plan.job, global_batch=BATCH, model=replace(plan.job.model, name="gpt")),
        fingerprint=choices.graph.fingerprint,
        mesh=MeshPlan(dp=choices.dp, tp=choices.tp),
        num_microbatches=choices.num_microbatches,
        microbatch=BATCH // choices.splits,
        regions=regions,
    )


def placed() -> Choices:
    return recipe(
        case("gpt").graph, 2, {**MEGATRON, **VOCABULARY}, Shard(1),
        dp=3, num_microbatches=2, recomputed=frozenset({"layers.1"}),
    )  # fmt: skip


def test_a_plan_gives_the_program_of_its_choices():
    choices = placed()
    assert emit_program(choices.graph.at_batch(2), planned(choices)) == emit_choices(choices, "gpt")


def test_a_plan_of_another_model_is_refused():
    plan = planned(placed())
    with pytest.raises(PlanError, match="another model"):
        emit_program(case("mlp").graph, plan)


def test_microbatches_that_do_not_make_the_batch_are_refused():
    plan = replace(planned(placed()), microbatch=2)
    with pytest.raises(PlanError, match="6 microbatches of 2 samples are no global batch of 6"):
        emit_program(case("gpt").graph, plan)
