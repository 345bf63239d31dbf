"""What plans hold of their stages and messages: it gives the step again, and the bytes by hand."""

from __future__ import annotations

import pytest

from autoplan import plan_io
from autoplan.plan import Plan
from autoplan.report.held_memory import held_memory
from autoplan.report.step import step_of
from cost_models.collectives import collective_s
from tests.unit.test_joint_plans import CLUSTER
from tests.unit.test_joint_stored import priced

PINS = [
    {"tp": 2, "dp": 2, "zero": 3},
    {"pp": 2, "tp": 2, "schedule": "1f1b"},
    {"pp": 2, "schedule": "interleaved_1f1b"},
]


@pytest.fixture(scope="module", params=PINS, ids=str)
def plan(request: pytest.FixtureRequest) -> Plan:
    found, _ = priced("gated", 4, **request.param)
    return plan_io.from_json(plan_io.to_json(found))


def test_the_step_of_a_plan_file_takes_as_long_as_the_plan_says(plan: Plan) -> None:
    step = step_of(plan)
    assert step is not None
    assert step.stop_s == pytest.approx(plan.estimate.step_s, rel=1e-9)
    for rank, each in enumerate(plan.estimate.stages):
        assert 0 < held_memory(plan, step, rank).most_bytes <= each.memory.total


def test_what_shows_is_told_by_axis(plan: Plan) -> None:
    estimate = plan.estimate
    shown = estimate.exposed_by_axis_s
    assert sum(shown.values()) == pytest.approx(estimate.exposed_comm_s, rel=1e-9)
    over_tp = sum(s for name, s in estimate.comm_s.items() if name.endswith(" tp"))
    assert shown["tp"] == pytest.approx(over_tp, rel=1e-9, abs=1e-15)
    over_dp = sum(s for name, s in estimate.comm_s.items() if name.endswith(" dp"))
    assert -1e-15 <= shown["dp"] <= over_dp * (1 + 1e-9)


def test_messages_have_bytes_and_numbers(plan: Plan) -> None:
    estimate = plan.estimate
    assert set(estimate.comm_s) == set(estimate.comm_bytes) == set(estimate.comm_counts)
    for amounts in (estimate.comm_bytes, estimate.comm_counts):
        assert min(amounts.values()) > 0


def test_weights_are_gathered_as_often_as_zero_says() -> None:
    once, pricing = priced("gated", 4, dp=4, zero=1)
    each, _ = priced("gated", 4, dp=4, zero=3)
    elements = sum(node.outputs[0].numel for node in pricing.graph.of_kind("parameter"))
    assert once.job.precision == "fp32"
    assert once.estimate.comm_bytes["all_gather dp"] == 4 * elements
    assert once.estimate.comm_bytes["reduce_scatter dp"] == 4 * elements
    times = each.num_microbatches
    assert each.estimate.comm_bytes["all_gather dp"] == 2 * 4 * elements * times
    assert each.estimate.comm_bytes["reduce_scatter dp"] == 4 * elements * times
    assert "all_reduce dp" not in each.estimate.comm_s
    gathers = once.estimate.comm_counts["all_gather dp"]
    assert each.estimate.comm_counts["all_gather dp"] == 2 * times * gathers


def test_replicas_sum_what_is_left_of_each_scatter() -> None:
    hybrid, pricing = priced("gated", 4, dp=4, zero=3, replicas=2)
    estimate = hybrid.estimate
    elements = sum(node.outputs[0].numel for node in pricing.graph.of_kind("parameter"))
    times = hybrid.num_microbatches
    assert estimate.comm_bytes["reduce_scatter dp"] == 4 * elements * times
    assert estimate.comm_bytes["all_reduce dp"] == 4 * elements / 2 * times
    assert estimate.comm_counts["all_reduce dp"] == estimate.comm_counts["reduce_scatter dp"]
    mean = estimate.comm_bytes["all_reduce dp"] / estimate.comm_counts["all_reduce dp"]
    most_s = estimate.comm_counts["all_reduce dp"] * collective_s("all_reduce", mean, 2, 2, CLUSTER)
    assert 0 < estimate.comm_s["all_reduce dp"] <= most_s * (1 + 1e-9)  # concave in the bytes
    over_dp = sum(s for name, s in estimate.comm_s.items() if name.endswith(" dp"))
    assert 0 < estimate.exposed_by_axis_s["dp"] <= over_dp * (1 + 1e-9)
