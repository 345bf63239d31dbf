"""Plans against the oracle, exhaustive search, and the rules that every plan must keep."""

from __future__ import annotations

import itertools
import math

import pytest

from autoplan.plan import Plan
from autoplan.search.candidates import enumerate_candidates
from autoplan.search.planner import plan_job
from autoplan.search.pricing import Pricing
from autoplan.search.problem import PAGE_BYTES, Problem, memory_of, time_of
from tests.unit.search_graphs import chain, gated_mlp, job, region_of, small_cluster, two_kinds
from tests.unit.search_oracle import Oracle

GRAPH = gated_mlp(3)
TWO = two_kinds(3, width=64, tokens=2048)
BIG = gated_mlp(6, width=128, hidden=512, tokens=2048)


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize(("tp", "recompute"), [(1, "none"), (2, "none"), (2, "full")])
def test_estimate_is_that_of_the_whole_graph(zero: int, tp: int, recompute: str) -> None:
    cluster = small_cluster()
    plan = plan_job(GRAPH, job(tp=tp, zero=zero, microbatch=2, recompute=recompute), cluster)
    oracle, estimate = Oracle(GRAPH, plan, cluster), plan.estimate
    forward, backward = oracle.compute_s()
    count = plan.num_microbatches
    assert estimate.compute_s == pytest.approx(count * (forward + backward))
    exposed = count * oracle.tp_s() + oracle.dp_exposed_s()
    assert estimate.exposed_comm_s == pytest.approx(exposed)
    assert estimate.optimizer_s == pytest.approx(oracle.optimizer_s())
    memory = estimate.stages[0].memory
    for name, expected in oracle.weight_bytes().items():
        assert getattr(memory, name) == pytest.approx(expected, abs=2)


@pytest.mark.parametrize(("tp", "recompute"), [(1, "none"), (2, "none"), (4, "none"), (4, "full")])
def test_activations_are_those_of_the_whole_graph(tp: int, recompute: str) -> None:
    cluster = small_cluster()
    plan = plan_job(BIG, job(tp=tp, microbatch=2, recompute=recompute), cluster)
    inputs = 8 // plan.mesh.dp * 2048 * 128 * 4
    activations = plan.estimate.stages[0].memory.activations - inputs
    expected = Oracle(BIG, plan, cluster).kept_bytes()
    storages = 10
    assert expected <= activations <= expected + storages * PAGE_BYTES


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_two_kinds_and_a_shared_input(tp: int, recompute: str) -> None:
    cluster = small_cluster()
    plan = plan_job(TWO, job(tp=tp, zero=2, microbatch=2, recompute=recompute), cluster)
    oracle, count = Oracle(TWO, plan, cluster), plan.num_microbatches
    forward, backward = oracle.compute_s()
    assert plan.estimate.compute_s == pytest.approx(count * (forward + backward))
    if plan.mesh.dp > 1:
        exposed = count * oracle.tp_s() + oracle.dp_exposed_s()
        assert plan.estimate.exposed_comm_s == pytest.approx(exposed)
    one = 2048 * 64 * 4
    activations = plan.estimate.stages[0].memory.activations - 8 // plan.mesh.dp * one
    expected = oracle.kept_bytes()
    counted_in_both_kinds = 2 * one
    assert expected <= activations <= expected + counted_in_both_kinds + 20 * PAGE_BYTES


def test_partial_recompute_agrees_with_the_whole_graph() -> None:
    plan, cluster = _tight_plan()
    region = region_of(plan, "layers.0")
    assert 0 < len(region.recomputed) < len(region.blocks)
    assert region.recomputed == region.blocks[: len(region.recomputed)]
    oracle = Oracle(BIG, plan, cluster)
    forward, backward = oracle.compute_s()
    count = plan.num_microbatches
    assert plan.estimate.compute_s == pytest.approx(count * (forward + backward))
    expected = oracle.kept_bytes() + 8 // plan.mesh.dp * 2048 * 128 * 4
    activations = plan.estimate.stages[0].memory.activations
    assert expected <= activations <= expected + 20 * PAGE_BYTES


def _tight_plan() -> tuple[Plan, object]:
    """A plan for which memory allows neither to keep nor to need to recompute everything."""
    pins = {"dp": 4, "microbatch": 2, "zero": 1}
    free = plan_job(BIG, job(recompute="none", **pins), small_cluster())
    full = plan_job(BIG, job(recompute="full", **pins), small_cluster())
    middle = (free.estimate.peak_memory_bytes + full.estimate.peak_memory_bytes) // 2
    cluster = small_cluster(middle)
    return plan_job(BIG, job(**pins), cluster), cluster


@pytest.mark.parametrize("memory", [1.0, 0.9, 0.75, 0.6])
def test_no_candidate_and_no_assignment_is_better(memory: float) -> None:
    """Exhaustive over meshes, stages, microbatches, recomputed blocks and assignments."""
    graph, asked = chain(3, width=128, tokens=512), job(gpus=2, batch=4)
    free = plan_job(graph, asked, small_cluster())
    cluster = small_cluster(
        math.ceil(free.estimate.peak_memory_bytes * memory / PAGE_BYTES + 8) * PAGE_BYTES
    )
    pricing = Pricing(graph, asked, cluster)
    candidates = enumerate_candidates(graph, asked, mixing=(), strategies_of=pricing.strategies_of)
    best = min(
        _exhaustive(pricing.problem(candidate, {"layers.0": count}))
        for candidate in candidates
        for count in range(4)
    )
    assert best < math.inf
    plan = plan_job(graph, asked, cluster)
    assert plan.estimate.step_s == pytest.approx(best, rel=1.1e-3)
    assert plan.search.lower_bound_s <= best * (1 + 1e-9)


def _exhaustive(problem: Problem) -> float:
    """Best time within the limit over every assignment; infinite when none fits."""
    assert problem.limit_pages is not None
    best = math.inf
    for choices in itertools.product(*(range(len(node.choices)) for node in problem.nodes)):
        time_s = time_of(problem, choices)
        if time_s < best and memory_of(problem, choices) <= problem.limit_pages:
            best = time_s
    return best
