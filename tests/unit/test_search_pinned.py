"""Every plan that is shown, chosen or not, can be pinned and is then the same plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.errors import InfeasibleError
from autoplan.job import Pins
from autoplan.plan import Alternative, Plan
from autoplan.search.planner import plan_job
from autoplan.search.problem import PAGE_BYTES
from autoplan.trace.graph import OpGraph
from hardware_profiles.spec import ClusterSpec
from tests.unit.search_graphs import gated_mlp, job, small_cluster, two_kinds

GRAPHS = {
    "gated": gated_mlp(6, width=128, hidden=512, tokens=512),
    "two kinds": two_kinds(3, width=64, tokens=2048),
}


def pins_of(shown: Alternative | Plan, global_batch: int, recompute: int) -> Pins:
    """All decisions of a plan as pins."""
    dp, tp = shown.mesh.dp, shown.mesh.tp
    size = global_batch // dp // shown.num_microbatches
    return Pins(dp=dp, tp=tp, zero=shown.zero, microbatch=size, recompute=recompute)


def recomputed(shown: Alternative, graph: OpGraph) -> int:
    by_word = {"none": 0, "full": len(graph.blocks)}
    return (
        by_word[shown.recompute] if shown.recompute in by_word else int(shown.recompute.split()[0])
    )


def check_alternatives(plan: Plan, graph: OpGraph, cluster: ClusterSpec) -> None:
    for other in plan.alternatives:
        pins = pins_of(other, plan.job.global_batch, recomputed(other, graph))
        asked = replace(plan.job, pins=pins)
        if not other.fits:
            with pytest.raises(InfeasibleError):
                plan_job(graph, asked, cluster)
            plenty = other.peak_memory_bytes + 16 * PAGE_BYTES
            asked = replace(asked, memory_limit_bytes=plenty, memory_margin=0.0)
        same = plan_job(graph, asked, cluster)
        assert same.estimate.step_s == other.step_s
        assert same.estimate.peak_memory_bytes == other.peak_memory_bytes
        assert (same.mesh, same.zero) == (other.mesh, other.zero)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("memory", [1.0, 0.8, 0.6])
def test_alternatives_and_the_plan_itself(name: str, memory: float) -> None:
    graph, asked = GRAPHS[name], job(gpus=4, batch=16)
    peak = plan_job(graph, asked, small_cluster()).estimate.peak_memory_bytes
    cluster = small_cluster(int(peak * memory) + 8 * PAGE_BYTES)
    plan = plan_job(graph, asked, cluster)
    assert plan.alternatives
    check_alternatives(plan, graph, cluster)
    count = sum(len(region.recomputed) for region in plan.regions)
    pinned = replace(asked, pins=pins_of(plan, asked.global_batch, count))
    same = plan_job(graph, pinned, cluster)
    assert same.regions == plan.regions
    assert same.estimate == plan.estimate
