"""Pipelines that the planner chose are trained as on one device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from autoplan.codegen.runnable import obstacle
from autoplan.job import Job, ModelSource, Pins
from autoplan.plan import Plan
from autoplan.runtime.parallelize import parallelize
from autoplan.search.planner import plan_job
from hardware_profiles.load import load
from tests.distributed.cases import (
    GLOBAL_BATCH,
    graph_of,
    lowest_dtype,
    make_batches,
    make_model,
)
from tests.distributed.harness import run_ranks
from tests.distributed.pipelines import compare

PINS = {
    "gpt tied": Pins(pp=2, tp=2, schedule="1f1b", recompute="full"),
    "llama": Pins(pp=2, dp=2, zero=1, schedule="interleaved_1f1b", stages_per_rank=2,
                  microbatch=1, recompute="none"),
    "gpt2": Pins(pp=2, recompute="none"),
}  # fmt: skip


SHORT = {"gpt": Pins(pp=2, tp=2, schedule="1f1b"), "llama": Pins(pp=2, dp=2, schedule="1f1b")}


def searched(
    model: str, pins: Pins, *, planned_only: bool = True, memory_limit_bytes: int | None = None
) -> Plan:
    """For devices so slow that splitting the work of a small model pays."""
    cluster = load("cpu-gloo")
    job = Job(
        model=ModelSource(kind="object", name=model),
        cluster=cluster.name,
        nodes=1,
        gpus_per_node=4,
        global_batch=GLOBAL_BATCH,
        precision="fp32",
        planned_only=planned_only,
        pins=pins,
        memory_limit_bytes=memory_limit_bytes,
        memory_margin=0.0,
    )
    flops = {"float32": 1e6, "float64": 1e6}
    device = replace(cluster.device, peak_flops=flops, workspace_bytes=0)
    return plan_job(graph_of(model, torch.float64), job, replace(cluster, device=device))


def train(rank: int, plans: Mapping[str, Plan]) -> None:
    for name, plan in plans.items():
        graph, model = graph_of(name, torch.float64), make_model(name, torch.float64)
        batches = make_batches(name, torch.float64)
        compare(parallelize(model, graph, plan), model, batches, "adamw", lowest_dtype(graph))


def short_of_memory(model: str, pins: Pins) -> Plan:
    """With 15 % less memory than the fastest plan takes."""
    fastest = searched(model, pins, planned_only=False)
    limit_bytes = int(0.85 * fastest.estimate.peak_memory_bytes)
    return searched(model, pins, planned_only=False, memory_limit_bytes=limit_bytes)


def test_operators_that_the_planner_runs_again():
    plans = {model: short_of_memory(model, pins) for model, pins in SHORT.items()}
    for model, plan in plans.items():
        assert any(region.recomputed_operators for region in plan.regions)
        assert obstacle(graph_of(model, torch.float64), plan) is None
    run_ranks(train, 4, plans, deadline_s=200)


def test_pipelines_of_the_planner():
    plans = {model: searched(model, pins) for model, pins in PINS.items()}
    for model, plan in plans.items():
        assert plan.mesh.pp == 2, model
        assert {stage.rank for stage in plan.stages} == {0, 1}, model
    run_ranks(train, 4, plans, deadline_s=200)
