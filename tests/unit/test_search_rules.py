"""Rules that every plan keeps: it fits, it adds up, it can be assigned, it beats the recipes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.capabilities import ZERO_STAGES
from autoplan.errors import InfeasibleError
from autoplan.plan import Plan
from autoplan.search.best_first import BestFirst
from autoplan.search.candidates import enumerate_candidates
from autoplan.search.ilp import solve, solve_memory
from autoplan.search.planner import plan_job
from autoplan.search.pricing import Pricing
from autoplan.search.problem import PAGE_BYTES, memory_of
from autoplan.sharding.assignment import assign
from autoplan.trace.graph import OpGraph, Ref
from tests.unit.search_graphs import chain, gated_mlp, job, region_of, small_cluster

GRAPHS = {
    "gated": gated_mlp(4, width=64, hidden=128, tokens=64),
    "chain": chain(2, width=64, tokens=32),
}


def check(plan: Plan, graph: OpGraph) -> None:
    """Everything that holds of a plan whatever it decided."""
    estimate, asked = plan.estimate, plan.job
    parts = estimate.compute_s + estimate.exposed_comm_s + estimate.bubble_s + estimate.optimizer_s
    assert estimate.step_s == pytest.approx(parts, rel=1e-12)
    assert estimate.peak_memory_bytes == estimate.stages[0].memory.total
    assert estimate.peak_memory_bytes <= estimate.memory_limit_bytes
    assert plan.mesh.dp * plan.mesh.tp == asked.world_size == estimate.stages[0].devices
    assert plan.mesh.dp * plan.microbatch * plan.num_microbatches == asked.global_batch
    assert plan.search.lower_bound_s <= estimate.step_s
    assert plan.search.gap == pytest.approx(1 - plan.search.lower_bound_s / estimate.step_s)
    assert 0 <= plan.search.gap <= 2.1e-3
    assert estimate.samples_per_s == pytest.approx(asked.global_batch / estimate.step_s)
    assert 0 < estimate.mfu < 1
    for other in plan.alternatives:
        assert other.reason
        assert other.step_s is not None
        if other.fits:
            assert other.peak_memory_bytes <= estimate.memory_limit_bytes
            assert other.step_s >= estimate.step_s * (1 - 1.1e-3)
    assigned = assign(graph, plan.regions, plan.mesh.tp)
    assert set(assigned.storage) == {node.name for node in graph.of_kind("parameter")}
    for region in plan.regions:
        assert region.recomputed == region.blocks[: len(region.recomputed)]


@settings(deadline=None, max_examples=10)
@given(data=st.data())
def test_whatever_is_asked(data: st.DataObject) -> None:
    graph = GRAPHS[data.draw(st.sampled_from(sorted(GRAPHS)))]
    gpus = data.draw(st.sampled_from([1, 2, 4]))
    nodes = data.draw(st.sampled_from([1, 2]))
    asked = job(
        nodes=nodes,
        gpus=gpus,
        batch=data.draw(st.sampled_from([8, 16, 24])),
        **data.draw(
            st.sampled_from([{}, {"recompute": "full"}, {"recompute": "none"}, {"zero": 2}])
        ),
    )
    plenty = plan_job(graph, asked, small_cluster())
    check(plenty, graph)
    share = data.draw(st.floats(0.3, 1.1))
    cluster = small_cluster(int(plenty.estimate.peak_memory_bytes * share))
    try:
        tight = plan_job(graph, asked, cluster)
    except InfeasibleError:
        return
    check(tight, graph)
    assert tight.estimate.step_s >= plenty.estimate.step_s * (1 - 2.1e-3)


@pytest.mark.parametrize("policy", ["none", "full"])
def test_pinned_recompute_is_honoured(policy: str) -> None:
    plan = plan_job(GRAPHS["gated"], job(recompute=policy), small_cluster())
    assert len(region_of(plan, "layers.0").recomputed) == (4 if policy == "full" else 0)


@settings(deadline=None, max_examples=15)
@given(share=st.floats(0, 1))
def test_no_more_blocks_are_recomputed_than_memory_demands(share: float) -> None:
    """With tp=1 there is one choice for everything, so the count decides alone."""
    graph, asked = gated_mlp(12, width=64, hidden=256, tokens=512), job(dp=4, zero=1, microbatch=2)
    needs = []
    for count in range(13):
        pricing = Pricing(graph, asked, small_cluster())
        (candidate,) = enumerate_candidates(
            graph, asked, mixing=(), strategies_of=pricing.strategies_of
        )
        problem = pricing.problem(candidate, {"layers.0": count})
        needs.append(memory_of(problem, (0,) * len(problem.nodes)))
    limit = int(min(needs) + share * (max(needs) - min(needs)))
    cluster = small_cluster((limit + 1) * PAGE_BYTES)
    limit = Pricing(graph, asked, cluster).limit_pages
    expected = next(count for count, need in enumerate(needs) if need <= limit)
    plan = plan_job(graph, asked, cluster)
    assert len(region_of(plan, "layers.0").recomputed) == expected


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_pinned_zero_is_honoured(zero: int) -> None:
    plan = plan_job(GRAPHS["gated"], job(dp=4, zero=zero), small_cluster())
    assert (plan.mesh.dp, plan.zero) == (4, zero)


def test_planning_twice_gives_the_same_plan() -> None:
    plans = {repr(plan_job(GRAPHS["gated"], job(), small_cluster())) for _ in range(2)}
    assert len(plans) == 1


def test_the_batch_of_the_trace_does_not_matter() -> None:
    graph = GRAPHS["gated"]
    assert plan_job(graph.at_batch(6), job(), small_cluster()) == plan_job(
        graph, job(), small_cluster()
    )


def test_recipes_are_always_there() -> None:
    plan = plan_job(GRAPHS["gated"], job(), small_cluster())
    names = [other.name for other in plan.alternatives]
    assert names[:3] == ["DDP", "FSDP (ZeRO-3)", "Megatron TP x DDP"]
    assert {other.mesh.tp for other in plan.alternatives} == {1, 2, 4}


def test_progress_is_told() -> None:
    heard: list[tuple[float, str]] = []
    plan_job(
        GRAPHS["gated"],
        job(),
        small_cluster(),
        progress=lambda done, what: heard.append((done, what)),
    )
    assert heard
    assert all(0 <= done <= 1 for done, _ in heard)
    assert any("best" in what for _, what in heard)


def test_a_shared_weight_is_one_decision() -> None:
    """All blocks read the first block's weight: it belongs to the root and is stored once."""
    graph = chain(3, width=64, tokens=64)
    first = graph.blocks[0].parameters[0]
    others = {block.parameters[0] for block in graph.blocks[1:]}
    nodes = tuple(
        replace(node, args=(node.args[0], Ref(first))) if node.name.endswith("/linear") and
        node.name != "inp/linear" else node
        for node in graph.nodes
        if node.name not in others
    )  # fmt: skip
    blocks = tuple(replace(block, parameters=(first,)) for block in graph.blocks)
    shared = replace(graph, nodes=nodes, blocks=blocks)
    cluster = small_cluster()
    one = plan_job(shared, job(dp=4, zero=0), cluster)
    three = plan_job(graph, job(dp=4, zero=0), cluster)
    assign(shared, one.regions, one.mesh.tp)
    saved = three.estimate.stages[0].memory.parameters - one.estimate.stages[0].memory.parameters
    assert saved == 2 * 64 * 64 * 4


def test_bounds_need_no_solver_and_are_never_above_the_truth() -> None:
    graph = GRAPHS["gated"]
    asked = job()
    peak = plan_job(graph, asked, small_cluster()).estimate.peak_memory_bytes
    pricing = Pricing(graph, asked, small_cluster(peak))
    candidates = enumerate_candidates(graph, asked, mixing=(), strategies_of=pricing.strategies_of)
    search = BestFirst(pricing, candidates, None)
    for candidate in candidates[::5]:
        count = search.fewest(candidate)
        order = search.order(candidate)
        for tried in range(order.total + 1):
            problem = search.problem(candidate, tried)
            least = solve_memory(problem)
            assert least is not None
            assert least.memory_pages == memory_of(problem, least.choices)
            fits = least.memory_pages <= pricing.limit_pages
            assert not (fits and (count is None or tried < count))
            solution = solve(problem)
            assert (solution is not None) == fits


def test_messages_per_step_follow_the_table_of_stages() -> None:
    """Counts are those that the runtime sends, so a stage's totals scale with its row."""
    graph, cluster = GRAPHS["gated"], small_cluster()
    plans = {
        stage.stage: plan_job(graph, job(dp=4, zero=stage.stage, microbatch=1), cluster)
        for stage in ZERO_STAGES
    }
    count = plans[1].num_microbatches
    gather = {zero: plan.estimate.comm_s.get("all_gather dp", 0.0) for zero, plan in plans.items()}
    reduce = {
        zero: plan.estimate.comm_s.get("reduce_scatter dp", 0.0) for zero, plan in plans.items()
    }
    assert gather[0] == reduce[0] == 0
    assert plans[0].estimate.comm_s["all_reduce dp"] > 0
    assert gather[2] == pytest.approx(gather[1])
    assert gather[3] == pytest.approx(2 * count * gather[1])
    assert reduce[2] == pytest.approx(count * reduce[1])
    assert reduce[3] == pytest.approx(reduce[2])
