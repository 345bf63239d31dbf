"""Predictions for plans without a pipeline against sums over the whole graph."""

from __future__ import annotations

import pytest

from autoplan.search.planner import plan_job
from tests.unit.search_graphs import gated_mlp, job, small_cluster, two_kinds
from tests.unit.search_oracle import Oracle

SLACK_BYTES = 1
"""Of rounding, for each storage."""

GRAPH = gated_mlp(3)
TWO = two_kinds(3, width=64, tokens=2048)
BIG = gated_mlp(6, width=128, hidden=512, tokens=2048)


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize(("tp", "recompute"), [(1, "none"), (2, "none"), (2, "full")])
def test_estimate_is_that_of_the_whole_graph(zero: int, tp: int, recompute: str) -> None:
    cluster = small_cluster()
    plan = plan_job(GRAPH, job(pp=1, tp=tp, zero=zero, microbatch=2, recompute=recompute), cluster)
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
    plan = plan_job(BIG, job(pp=1, tp=tp, microbatch=2, recompute=recompute), cluster)
    inputs = 8 // plan.mesh.dp * 2048 * 128 * 4
    activations = plan.estimate.stages[0].memory.activations - inputs
    expected = Oracle(BIG, plan, cluster).kept_bytes()
    storages = 10
    assert expected <= activations <= expected + storages * SLACK_BYTES


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_two_kinds_and_a_shared_input(tp: int, recompute: str) -> None:
    cluster = small_cluster()
    plan = plan_job(TWO, job(pp=1, tp=tp, zero=2, microbatch=2, recompute=recompute), cluster)
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
    assert expected <= activations <= expected + counted_in_both_kinds + 20 * SLACK_BYTES
