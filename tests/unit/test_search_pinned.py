"""Every plan that is shown, chosen or not, can be pinned and is then the same plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from autoplan import zoo
from autoplan.errors import InfeasibleError
from autoplan.explanation import pins_of
from autoplan.job import Job, ModelSource, Pins
from autoplan.plan import Plan
from autoplan.request import make_pins
from autoplan.search.planner import plan_job
from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph
from hardware_profiles.load import load
from hardware_profiles.spec import ClusterSpec
from tests.unit.search_graphs import gated_mlp, job, small_cluster, two_kinds
from tests.unit.test_joint_plans import CLUSTER, free_job, graph_of

GRAPHS = {
    "gated": gated_mlp(6, width=128, hidden=512, tokens=512),
    "two kinds": two_kinds(3, width=64, tokens=2048),
}


def check_alternatives(plan: Plan, graph: OpGraph, cluster: ClusterSpec) -> None:
    for other in plan.alternatives:
        asked = replace(plan.job, pins=make_pins(pins_of(other, plan.job)))
        if not other.fits:
            with pytest.raises(InfeasibleError):
                plan_job(graph, asked, cluster)
            plenty = other.peak_memory_bytes
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
    cluster = small_cluster(int(peak * memory))
    plan = plan_job(graph, asked, cluster)
    assert plan.alternatives
    check_alternatives(plan, graph, cluster)
    mesh, size = plan.mesh, asked.global_batch // (plan.mesh.dp * plan.num_microbatches)
    pins = Pins(
        pp=mesh.pp, dp=mesh.dp, tp=mesh.tp, zero=plan.zero, microbatch=size, schedule=plan.schedule,
        replicas=plan.replicas, outermost=mesh.outermost,
    )  # fmt: skip
    same = plan_job(graph, replace(asked, pins=pins), cluster)
    assert same.regions == plan.regions
    assert same.estimate == plan.estimate


@pytest.mark.parametrize(
    ("name", "devices"), [("gated", 8), ("encoder and decoder", 4), ("random", 4)]
)
def test_alternatives_with_pipelines_and_replicas(name: str, devices: int) -> None:
    asked = replace(free_job(devices), planned_only=False)
    plan = plan_job(graph_of(name), asked, CLUSTER)
    assert any(other.mesh.pp > 1 for other in plan.alternatives)
    check_alternatives(plan, graph_of(name), CLUSTER)


@pytest.fixture(scope="module")
def gpt2() -> OpGraph:
    model = zoo.build("gpt2", 1024)
    return capture(model.model, model.example_inputs, dtype=torch.bfloat16, global_batch=64)


@pytest.mark.parametrize("limit_gib", [75, 8, 4])
def test_alternatives_of_gpt2(gpt2: OpGraph, limit_gib: int) -> None:
    """With plenty of memory, with too little for tp=2 to keep everything, and for DDP to fit."""
    asked = Job(
        model=ModelSource(kind="zoo", name="gpt2", seq_len=1024), cluster="dgx-h100", nodes=1,
        gpus_per_node=8, global_batch=64, memory_limit_bytes=limit_gib * 2**30,
    )  # fmt: skip
    plan = plan_job(gpt2, asked, load("dgx-h100"))
    assert plan.alternatives
    assert all(other.fits for other in plan.alternatives) == (limit_gib > 4)
    check_alternatives(plan, gpt2, load("dgx-h100"))
