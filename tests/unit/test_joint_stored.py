"""Plans that were made before, priced anew: to the numbers with which they were found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.errors import PlanError
from autoplan.job import Pins
from autoplan.search.pipeline.estimates import estimate_of
from autoplan.search.pipeline.plans import plan_of
from autoplan.search.pipeline.stored import found_of
from autoplan.search.planner import plan_priced
from autoplan.search.pricing import Pricing
from tests.unit.test_joint_plans import CASES, CLUSTER, free_job, graph_of, planned

MODELS = sorted({case[0] for case in CASES})
PINS = [
    {"pp": 2},
    {"pp": 2, "tp": 2},
    {"pp": 2, "recompute": "full"},
    {"pp": 2, "schedule": "gpipe"},
]


def priced(name, devices, **pins):
    """A plan of blocks, with what prices it."""
    asked = replace(free_job(devices), planned_only=False, pins=Pins(**pins))
    pricing = Pricing(graph_of(name), asked, CLUSTER)
    return plan_priced(pricing, with_alternatives=False), pricing


@pytest.mark.parametrize("pins", PINS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_plan_is_priced_as_it_was_found(name, pins):
    check(*priced(name, 4, **pins))


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_operators_that_run_again_are_priced_as_they_were_found(name, pp):
    plan = planned(name, 4, 0.8, pp=pp)
    check(plan, Pricing(graph_of(name), plan.job, CLUSTER))


def check(plan, pricing):
    found = found_of(pricing, plan)
    estimate = estimate_of(pricing, found)
    assert plan_of(pricing, found, plan.search) == replace(plan, estimate=estimate, alternatives=())
    assert [each.memory for each in estimate.stages] == [
        each.memory for each in plan.estimate.stages
    ]
    for part in ("step_s", "compute_s", "exposed_comm_s", "bubble_s", "optimizer_s", "mfu"):
        assert getattr(estimate, part) == pytest.approx(getattr(plan.estimate, part), rel=1e-9)
    assert estimate.comm_s == pytest.approx(plan.estimate.comm_s)


def test_a_plan_changed_by_hand_costs_what_its_new_choices_cost():
    plan, pricing = priced("gated", 4, pp=2, tp=2, schedule="1f1b", recompute="none")
    whole, _ = priced("gated", 4, pp=2, tp=2, schedule="1f1b", recompute="full")
    recomputed = tuple(replace(region, recomputed=region.blocks) for region in plan.regions)
    changed = found_of(pricing, replace(plan, regions=recomputed))
    forward_s = [each.forward_s for each in plan.estimate.stages]
    backward_s = [each.backward_s for each in plan.estimate.stages]
    for stage, before_s, loss_s in zip(
        estimate_of(pricing, changed).stages, backward_s, forward_s, strict=True
    ):
        assert before_s < stage.backward_s <= before_s + loss_s
    assert changed.step_s >= whole.estimate.step_s * (1 - whole.search.gap - 1e-9)


def test_inputs_placed_anew_alone_cost_no_less_time_and_no_more_memory():
    plan, pricing = priced("gated", 4, pp=2, tp=2, schedule="1f1b", recompute="none")
    anew = tuple(
        replace(region, reconverted_inputs=tuple(range(len(region.inputs))))
        for region in plan.regions
    )
    found, kept = (found_of(pricing, each) for each in (replace(plan, regions=anew), plan))
    assert found.step_s >= kept.step_s * (1 - 1e-12)
    for less, more in zip(found.value.memory, kept.value.memory, strict=True):
        assert less.activations <= more.activations


def test_a_choice_that_is_none_is_refused():
    plan, pricing = priced("gated", 4, pp=2)
    moved = tuple(replace(stage, first="nowhere") for stage in plan.stages)
    with pytest.raises(PlanError, match="nowhere"):
        found_of(pricing, replace(plan, stages=moved))
