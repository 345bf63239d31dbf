"""Plans of small models over pipelines: files, parts, alternatives, and the same each time."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

from autoplan import plan_io
from autoplan.explanation import pins_of
from autoplan.job import Job, Pins
from autoplan.plan import Plan
from autoplan.search.planner import plan_job
from autoplan.sharding.assignment import assign
from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph
from tests.unit import trace_models
from tests.unit.region_graphs import random_model
from tests.unit.search_graphs import gated_mlp, job, small_cluster, two_kinds
from tests.unit.test_trace_stack import encoder_decoder, gpt2

CLUSTER = small_cluster()
GRAPHS = {
    "gated": lambda: gated_mlp(4, width=128, hidden=512, tokens=512),
    "two kinds": lambda: two_kinds(2, width=64, tokens=512),
    "gpt2": gpt2,
    "encoder and decoder": encoder_decoder,
    "random": lambda: random_model(3),
}
CASES = [
    ("gated", 1, 1.0),
    ("gated", 2, 0.8),
    ("gated", 4, 0.6),
    ("two kinds", 2, 1.0),
    ("two kinds", 4, 0.6),
    ("gpt2", 2, 0.6),
    ("gpt2", 8, 1.0),
    ("encoder and decoder", 1, 0.6),
    ("encoder and decoder", 4, 1.0),
    ("random", 2, 0.8),
]
"""Model, devices, and the part of what the fastest plan takes that there is."""


@cache
def graph_of(name: str) -> OpGraph:
    return GRAPHS[name]()


@cache
def free_job(devices: int) -> Job:
    nodes = 2 if devices > 4 else 1
    return replace(job(nodes=nodes, gpus=devices // nodes, batch=16), planned_only=True)


@cache
def planned(name: str, devices: int, part: float, **pins: int | str) -> Plan:
    """A plan where memory is short of what the fastest plan takes."""
    asked = replace(free_job(devices), pins=Pins(**pins))  # pyright: ignore[reportArgumentType]
    if part < 1:
        fixed = CLUSTER.device.workspace_bytes
        most = planned(name, devices, 1.0).estimate.peak_memory_bytes
        limit_bytes = (fixed + part * (most - fixed)) / (1 - asked.memory_margin)
        asked = replace(asked, memory_limit_bytes=int(limit_bytes))
    return plan_job(graph_of(name), asked, CLUSTER)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_files_and_parts(case):
    plan = planned(*case)
    assert plan_io.from_json(plan_io.to_json(plan)) == plan
    estimate = plan.estimate
    parts = estimate.compute_s + estimate.exposed_comm_s + estimate.bubble_s + estimate.optimizer_s
    assert parts == pytest.approx(estimate.step_s)
    assert estimate.peak_memory_bytes == max(stage.memory.total for stage in estimate.stages)
    assert estimate.memory_limit_bytes is not None
    assert estimate.peak_memory_bytes <= estimate.memory_limit_bytes
    assert plan.search.gap == pytest.approx(1 - plan.search.lower_bound_s / estimate.step_s)
    assert plan.search.gap is not None
    assert 0 <= plan.search.gap < 1


@pytest.mark.parametrize("case", CASES, ids=str)
def test_placements_go_together(case):
    plan = planned(*case)
    assert assign(graph_of(case[0]), plan.regions, plan.mesh.tp)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_alternatives_are_no_faster_and_can_be_pinned(case):
    plan = planned(*case)
    for other in plan.alternatives:
        if not other.fits:
            continue
        assert other.step_s is not None
        assert plan.estimate.step_s <= other.step_s
        again = planned(*case, **pins_of(other, plan.job)).estimate
        assert again.step_s == pytest.approx(other.step_s, rel=1e-12)
        assert again.peak_memory_bytes == other.peak_memory_bytes


@pytest.mark.parametrize("case", CASES, ids=str)
def test_names_of_recipes_say_what_they_are(case):
    for other in planned(*case).alternatives:
        if "interleaved" in other.name or "1F1B" in other.name:
            assert ("interleaved" in other.name) == (other.schedule == "interleaved_1f1b")
        if "ZeRO-" in other.name:
            assert f"ZeRO-{other.zero}" in other.name


@pytest.mark.parametrize("pins", [{"pp": 2}, {"replicas": 2, "zero": 1}], ids=str)
@pytest.mark.parametrize("name", ["gated", "two kinds"])
def test_alternatives_that_run_can_be_pinned(name, pins):
    """With whole blocks recomputed, and memory for some of them."""
    asked = replace(free_job(4), planned_only=False, pins=Pins(**pins))
    most = plan_job(graph_of(name), asked, CLUSTER).estimate.peak_memory_bytes
    asked = replace(asked, memory_limit_bytes=int(0.8 * most))
    plan = plan_job(graph_of(name), asked, CLUSTER)
    for other in plan.alternatives:
        if not other.fits:
            continue
        assert other.step_s is not None
        assert plan.estimate.step_s <= other.step_s
        pinned = Pins(**pins_of(other, plan.job))  # pyright: ignore[reportArgumentType]
        again = plan_job(graph_of(name), replace(asked, pins=pinned), CLUSTER).estimate
        assert again.step_s == pytest.approx(other.step_s, rel=1e-12)
        assert again.peak_memory_bytes == other.peak_memory_bytes


@pytest.mark.parametrize("pins", [{"pp": 2}, {"pp": 4, "schedule": "zero_bubble"}], ids=str)
@pytest.mark.parametrize("name", ["gated", "gpt2", "encoder and decoder"])
def test_pipelines_of_a_few_stages(name, pins):
    plan = planned(name, 4, 1.0, **pins)
    graph = graph_of(name)
    assert plan.mesh.pp == pins["pp"]
    assert plan_io.from_json(plan_io.to_json(plan)) == plan
    staged = [block for stage in plan.stages for block in stage.blocks]
    assert staged == [block.path for block in graph.blocks]
    assert assign(graph, plan.regions, plan.mesh.tp)
    free = planned(name, 4, 1.0)
    assert free.estimate.step_s <= plan.estimate.step_s
    assert free.search.lower_bound_s <= plan.estimate.step_s


class Layer(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class SharesAmongBlocks(nn.Module):
    """All layers read one weight."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(4))
        first, *others = self.layers.children()
        for layer in others:
            layer.get_submodule("up").register_parameter("weight", first.get_parameter("up.weight"))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.sum()


def tied_and_frozen() -> OpGraph:
    model = trace_models.gpt2(layers=3)
    model.transformer.wte.weight.requires_grad_(False)
    ids = torch.zeros(2, 16, dtype=torch.long)
    return capture(model, {"input_ids": ids, "labels": ids})


SHARING = {
    "among blocks": lambda: capture(SharesAmongBlocks(), (torch.randn(2, 16),)),
    "frozen": tied_and_frozen,
}


@pytest.mark.parametrize("pins", [{"pp": 2}, {"dp": 4, "zero": 1}, {"dp": 4, "zero": 3}], ids=str)
@pytest.mark.parametrize("name", SHARING)
def test_parameters_that_several_read(name, pins):
    asked = replace(free_job(4), pins=Pins(**pins))
    plan = plan_job(SHARING[name](), asked, CLUSTER)
    trained = sum(
        node.outputs[0].numel
        for node in SHARING[name]().nodes
        if node.kind == "parameter" and node.outputs[0].requires_grad
    )
    states = [stage.memory.optimizer_state for stage in plan.estimate.stages]
    assert sum(states) * plan.mesh.tp * plan.mesh.dp >= 8 * trained


def test_the_same_again():
    for case in (("gated", 4, 0.6), ("gpt2", 2, 0.6)):
        before = plan_io.to_json(planned(*case))
        planned.cache_clear()
        assert plan_io.to_json(planned(*case)) == before
