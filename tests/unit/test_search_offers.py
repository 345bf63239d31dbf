"""What the search over pipelines offers of a model, and that its plans say all that is needed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from autoplan.codegen.runnable import obstacle
from autoplan.errors import PlanError
from autoplan.job import Pins
from autoplan.search.planner import plan_job
from autoplan.sharding.assignment import assign
from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph, Ref
from tests.unit.search_graphs import chain, job, small_cluster, two_kinds
from tests.unit.test_trace_stack import gpt2

CLUSTER = small_cluster()


class Centred(nn.Module):
    """Its loss needs the mean of the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return (x - x.mean(0)).square().mean()


def with_tied_blocks() -> OpGraph:
    """A chain whose last two layers read one weight: a stage with both cannot be split."""
    graph = chain(3, width=64, tokens=16)
    last = graph.by_name["layers.2/linear"]
    args = tuple(
        Ref("layers.1.weight") if arg == Ref("layers.2.weight") else arg for arg in last.args
    )
    return replace(
        graph,
        nodes=tuple(replace(node, args=args) if node is last else node for node in graph.nodes),
    )


def test_a_backward_that_can_be_split_is_offered():
    plan = plan_job(gpt2(), job(gpus=2, batch=8, pp=2, schedule="zero_bubble"), CLUSTER)
    assert plan.schedule == "zero_bubble"
    assert obstacle(gpt2(), plan) is None


def test_a_backward_that_cannot_be_split_is_not_offered():
    graph = with_tied_blocks()
    plan = plan_job(graph, job(gpus=2, batch=8, pp=2, recompute="none"), CLUSTER)
    assert plan.schedule in ("1f1b", "interleaved_1f1b")
    assert obstacle(graph, plan) is None
    asked = job(gpus=2, batch=8, pp=2, schedule="zero_bubble")
    with pytest.raises(PlanError, match=r"^schedule=zero_bubble splits .* use 1f1b [^\n]*$"):
        plan_job(graph, asked, CLUSTER)
    assert plan_job(graph, replace(asked, planned_only=True), CLUSTER).schedule == "zero_bubble"


def test_the_schedule_that_is_not_searched():
    with pytest.raises(PlanError, match=r"^schedule=zbv is not searched; use .*zero_bubble"):
        plan_job(gpt2(), job(gpus=2, batch=8, schedule="zbv"), CLUSTER)


@pytest.mark.parametrize("pins", [Pins(pp=2), Pins(pp=1, replicas=1)], ids=str)
def test_parameters_that_nothing_reads_are_placed_and_held_by_the_first_stage(pins):
    graph = chain(2, width=64, tokens=16)
    weight = graph.by_name["inp.weight"]
    unread = replace(weight, name="unread", target="unread")
    with_unread = replace(graph, nodes=(unread, *graph.nodes))
    asked = replace(job(gpus=2, batch=8), pins=pins, planned_only=True)
    held = [
        plan_job(each, asked, CLUSTER).estimate.stages[0].memory for each in (graph, with_unread)
    ]
    plan = plan_job(with_unread, asked, CLUSTER)
    assert assign(with_unread, plan.regions, plan.mesh.tp).storage["unread"]
    assert held[1].total > held[0].total


def test_a_batch_that_cannot_be_split_is_named():
    graph = capture(Centred(), {"x": torch.zeros(4, 8)})
    with pytest.raises(PlanError, match=r"^no mesh with pp=2: .* because of /[^\n]*$"):
        plan_job(graph, job(gpus=2, batch=8, pp=2), CLUSTER)


@pytest.mark.parametrize(
    "pins", [{"stages_per_rank": 2}, {"schedule": "interleaved_1f1b"}], ids=str
)
def test_several_stages_of_unlike_blocks_are_named(pins):
    graph = two_kinds(2, width=64, tokens=16)
    with pytest.raises(PlanError, match=r"models with one kind of block[^\n]*$"):
        plan_job(graph, job(gpus=2, batch=8, pp=2, **pins), CLUSTER)


def test_recomputing_in_a_split_backward_is_named():
    asked = job(gpus=2, batch=8, pp=2, schedule="zero_bubble", recompute="full")
    graph = chain(3, width=64, tokens=16)
    with pytest.raises(PlanError, match=r"^schedule zero_bubble splits .* recompute nothing, or "):
        plan_job(graph, asked, CLUSTER)
    plan = plan_job(graph, replace(asked, planned_only=True), CLUSTER)
    assert plan.schedule == "zero_bubble"


def test_without_pins_no_pin_is_to_be_left_out():
    with pytest.raises(PlanError, match=r"with as many microbatches; change the batch or the GPUs"):
        plan_job(
            chain(3, width=64, tokens=16),
            replace(job(gpus=3, batch=2), planned_only=True),
            small_cluster(gpus_per_node=3),
        )
