"""Explanations against plain planning of the same questions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.errors import InfeasibleError, PlanError
from autoplan.explanation import Explanation, memory_parts
from autoplan.job import Job, Pins
from autoplan.plan import Plan
from autoplan.request import make_question
from autoplan.search.pipeline.stored import found_of
from autoplan.search.planner import plan_job
from autoplan.search.pricing import Pricing
from autoplan.search.what_if import explain_plan
from hardware_profiles.spec import ClusterSpec
from tests.unit.search_graphs import gated_mlp, job, small_cluster

GRAPH = gated_mlp(6, width=128, hidden=512, tokens=2048)
ASKED = job(gpus=4, batch=16)


def explained(plan: Plan, cluster: ClusterSpec, **pins: int | str) -> Explanation:
    asked = make_question(pins)
    return explain_plan(GRAPH, plan, cluster, asked, lambda fraction, what: None)


def tight(share: float, asked: Job = ASKED) -> tuple[Plan, ClusterSpec]:
    """A plan where memory is this share of what the fastest plan needs."""
    peak = plan_job(GRAPH, asked, small_cluster()).estimate.peak_memory_bytes
    cluster = small_cluster(int(peak * share))
    return plan_job(GRAPH, asked, cluster), cluster


@pytest.mark.parametrize("share", [1.0, 0.7])
def test_a_stored_plan_is_priced_as_it_was(share: float) -> None:
    plan, cluster = tight(share)
    found = explained(plan, cluster)
    assert found.plan.estimate == plan.estimate
    assert found.is_best
    assert found.lower_bound_s == plan.search.lower_bound_s


def test_memory_that_does_not_bind_is_worth_nothing() -> None:
    plan, cluster = tight(1.1)
    memory = explained(plan, cluster).memory
    assert memory is not None
    assert (memory.binds, memory.more) == (False, ())
    assert memory.unlimited.estimate.step_s == plan.estimate.step_s
    assert memory.needed_bytes <= 0


def test_memory_that_binds_has_the_price_that_planning_with_more_shows() -> None:
    plan, cluster = tight(0.5)
    memory = explained(plan, cluster).memory
    assert memory is not None
    assert memory.binds
    assert memory.needed_bytes > 0
    fastest = plan_job(GRAPH, ASKED, small_cluster())
    assert memory.unlimited.estimate.step_s == fastest.estimate.step_s
    assert memory.more
    for step in memory.more:
        larger = small_cluster(cluster.device.memory_bytes + step.added_bytes)
        again = plan_job(GRAPH, ASKED, larger).estimate.step_s
        assert step.plan.estimate.step_s == min(again, plan.estimate.step_s)
        assert step.difference_s == step.plan.estimate.step_s - plan.estimate.step_s <= 0
    assert memory.more[-1].difference_s < 0


@pytest.mark.parametrize("pins", [{"tp": 4}, {"tp": 2, "zero": 3}, {"recompute": "full"}])
def test_why_not_is_planning_with_the_pins(pins: dict[str, int | str]) -> None:
    plan, cluster = tight(1.0)
    answer = explained(plan, cluster, **pins).why_not
    assert answer is not None
    assert answer.pins == pins
    pinned = plan_job(GRAPH, replace(ASKED, pins=Pins(**pins)), cluster)  # type: ignore[arg-type]
    assert answer.plan is not None
    assert answer.plan.estimate == pinned.estimate
    assert answer.verdict == "slower"
    by_part = sum(answer.time_difference_s.values())
    assert by_part == pytest.approx(pinned.estimate.step_s - plan.estimate.step_s)
    assert answer.step_difference_s == pinned.estimate.step_s - plan.estimate.step_s
    before, after = (memory_parts(p.estimate.stages[0].memory) for p in (plan, pinned))
    assert answer.memory_difference_bytes == {name: after[name] - before[name] for name in before}


def test_why_not_other_placements_is_planning_with_them() -> None:
    plan, cluster = tight(1.0)
    question = make_question({"place:*.weight": "Replicate()", "tp": 2})
    found = explain_plan(GRAPH, plan, cluster, question, lambda fraction, what: None)
    answer = found.why_not
    assert answer is not None
    assert answer.pins == {"tp": 2, "place:*.weight": "Replicate()"}
    given = replace(ASKED, pins=Pins(tp=2), placements=(("*.weight", "Replicate()"),))
    assert answer.plan is not None
    assert answer.plan.estimate == plan_job(GRAPH, given, cluster).estimate
    unknown = make_question({"place:no.such.*": "Replicate()"})
    answer = explain_plan(GRAPH, plan, cluster, unknown, lambda fraction, what: None).why_not
    assert answer is not None
    assert answer.verdict == "cannot be"
    assert "no.such.*" in answer.reason


def test_why_not_what_it_is_has_no_difference() -> None:
    plan, cluster = tight(1.0)
    answer = explained(plan, cluster, tp=plan.mesh.tp, zero=plan.zero).why_not
    assert answer is not None
    assert answer.verdict == "as fast"
    assert answer.step_difference_s == 0
    assert not any(answer.memory_difference_bytes.values())


def test_why_not_what_does_not_fit() -> None:
    pins = {"dp": 4, "zero": 0, "recompute": "none", "microbatch": 4}
    plan, cluster = tight(0.4)
    asked = replace(ASKED, pins=Pins(**pins))  # type: ignore[arg-type]
    with pytest.raises(InfeasibleError) as refused:
        plan_job(GRAPH, asked, cluster)
    answer = explained(plan, cluster, **pins).why_not
    assert answer is not None
    assert answer.verdict == "does not fit"
    assert answer.reason == str(refused.value)
    assert answer.plan is not None
    free = plan_job(GRAPH, asked, small_cluster())
    assert answer.plan.estimate.stages == free.estimate.stages
    limit = answer.plan.estimate.memory_limit_bytes
    assert plan.estimate.memory_limit_bytes == limit < answer.plan.estimate.peak_memory_bytes
    assert answer.memory_difference_bytes["activations"] > 0


def test_why_not_what_cannot_be() -> None:
    plan, cluster = tight(1.0)
    answer = explained(plan, cluster, tp=3).why_not
    assert answer is not None
    assert (answer.verdict, answer.plan) == ("cannot be", None)
    assert answer.reason == "tp=3 does not divide the 4 GPUs; tp can be 1, 2, 4"


def test_rivals_come_with_pins_that_give_them_back() -> None:
    plan, cluster = tight(0.6)
    rivals = explained(plan, cluster).rivals
    assert [rival.alternative for rival in rivals] == list(plan.alternatives)
    for rival in rivals:
        answer = explained(plan, cluster, **rival.pins).why_not
        assert answer is not None
        assert answer.plan is not None
        if rival.alternative.fits:
            assert answer.plan.estimate.step_s == rival.alternative.step_s
            assert answer.plan.estimate.peak_memory_bytes == rival.alternative.peak_memory_bytes
        else:
            assert answer.verdict == "does not fit"


def test_a_plan_changed_by_hand_is_priced_as_it_is() -> None:
    plan, cluster = tight(1.0)
    worse = plan_job(GRAPH, replace(ASKED, pins=Pins(zero=3, recompute="full")), cluster)
    edited = replace(worse, job=plan.job, estimate=plan.estimate)
    found = explained(edited, cluster)
    assert found.plan.estimate == worse.estimate
    assert not found.is_best


def test_a_plan_with_another_strategy_than_there_is_is_refused() -> None:
    plan, cluster = tight(1.0)
    root = replace(plan.regions[0], parameters={"inp.weight": "Shard(5)"})
    with pytest.raises(PlanError, match=r"inp\.weight"):
        found_of(Pricing(GRAPH, ASKED, cluster), replace(plan, regions=(root, *plan.regions[1:])))
