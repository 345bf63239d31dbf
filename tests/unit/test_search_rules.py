"""Rules that every plan keeps: it fits, it adds up, it can be assigned, it beats the recipes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.capabilities import ZERO_STAGES
from autoplan.errors import InfeasibleError
from autoplan.plan import Plan
from autoplan.search.pipeline.standard import RUNNER_UP
from autoplan.search.planner import plan_job
from autoplan.sharding.assignment import assign
from autoplan.trace.graph import OpGraph, Ref
from tests.unit.search_graphs import chain, gated_mlp, job, small_cluster

GRAPHS = {
    "gated": gated_mlp(4, width=64, hidden=128, tokens=64),
    "chain": chain(2, width=64, tokens=32),
}


def check(plan: Plan, graph: OpGraph) -> None:
    """Everything that holds of a plan whatever it decided."""
    estimate, asked = plan.estimate, plan.job
    parts = estimate.compute_s + estimate.exposed_comm_s + estimate.bubble_s + estimate.optimizer_s
    assert estimate.step_s == pytest.approx(parts, rel=1e-12)
    assert estimate.peak_memory_bytes == max(stage.memory.total for stage in estimate.stages)
    assert estimate.peak_memory_bytes <= estimate.memory_limit_bytes
    assert plan.mesh.pp * plan.mesh.dp * plan.mesh.tp == asked.world_size
    assert sum(stage.devices for stage in estimate.stages) == asked.world_size
    assert plan.mesh.dp * plan.microbatch * plan.num_microbatches == asked.global_batch
    assert plan.search.lower_bound_s <= estimate.step_s
    assert plan.search.gap == pytest.approx(1 - plan.search.lower_bound_s / estimate.step_s)
    assert 0 <= plan.search.gap < 1
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
    assert tight.estimate.step_s >= plenty.search.lower_bound_s * (1 - 1e-9)


@pytest.mark.parametrize("policy", ["none", "full"])
def test_pinned_recompute_is_honoured(policy: str) -> None:
    plan = plan_job(GRAPHS["gated"], job(recompute=policy), small_cluster())
    regions = [region for region in plan.regions if region.kind]
    again = sum(len(region.recomputed) for region in regions)
    assert again == (4 if policy == "full" else 0)
    assert not any(region.recomputed_operators for region in regions)


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
    recipes = [name for name in names if not name.startswith(RUNNER_UP)]
    assert recipes[:3] == ["DDP", "FSDP (ZeRO-3)", "Megatron TP x DDP"]


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


def test_a_weight_that_blocks_share_is_held_once() -> None:
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
