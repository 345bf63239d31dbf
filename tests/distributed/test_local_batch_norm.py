"""Training with local BatchNorm statistics equals plain modules, each on the rows of its rank."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from autoplan.codegen.pipeline import emit_program
from autoplan.errors import UnsupportedModelError
from autoplan.plan import Plan
from autoplan.runtime.parallelize import parallelize
from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph
from autoplan.trace.stack import stack_of
from cost_models.schedules import PipelineShape, ScheduleName
from tests.distributed.greedy import greedy_regions
from tests.distributed.harness import run_ranks
from tests.distributed.parity import assert_parity, full
from tests.distributed.plans import make_plan
from tests.parity.normed import NormedLayer, batch_of, model_of
from tests.parity.stages import stages_at

ROWS, STEPS = 16, 2
PLANS: dict[str, dict[str, Any]] = {
    "dp, ZeRO 1": {"dp": 2, "zero": 1, "num_microbatches": 2},
    "dp, ZeRO 3, recomputed": {"dp": 2, "zero": 3, "num_microbatches": 2, "recompute": True},
    "1F1B": {"pp": 2, "num_microbatches": 4},
    "zero bubble": {"pp": 2, "num_microbatches": 4, "schedule": "zero_bubble"},
    "pp x dp": {"pp": 2, "dp": 2, "zero": 1, "num_microbatches": 2},
    "dp x tp": {"dp": 2, "tp": 2, "zero": 2, "num_microbatches": 2},
}


@cache
def graph_of() -> OpGraph:
    torch.manual_seed(0)
    return capture(model_of("mlp"), batch_of(2), batch_norm="local")


@cache
def batches() -> list[dict[str, Tensor]]:
    torch.manual_seed(1)
    return [batch_of(ROWS) for _ in range(STEPS)]


def plan_of(key: str) -> Plan:
    options = dict(PLANS[key])
    graph = graph_of().at_batch(ROWS)
    pp, microbatches = options.get("pp", 1), options["num_microbatches"]
    recomputed = graph.blocks if options.pop("recompute", False) else ()
    regions = greedy_regions(graph, options.get("tp", 1), frozenset(b.path for b in recomputed))
    if pp > 1:
        schedule = cast(ScheduleName, options.setdefault("schedule", "1f1b"))
        shape = PipelineShape(schedule=schedule, ranks=pp, stages=pp, microbatches=microbatches)
        options["stages"] = stages_at(graph, (0, len(stack_of(graph).items) // 2), shape.rank_of)
    return make_plan(
        graph.fingerprint, global_batch=ROWS, regions=regions, batch_norm="local", **options
    )


def run_plans(rank: int, keys: list[str]) -> dict[str, Any]:
    found = {}
    for key in keys:
        pm = parallelize(model_of("mlp"), graph_of(), plan_of(key), seed=0)
        verified = pm.verify(model_of("mlp"), batches()[0])
        assert verified.ok, [d for d in verified.differences if not d.ok]
        optimizer = torch.optim.AdamW(pm.parameters(), lr=1e-2, eps=1e-4)
        losses = []
        for batch in batches():
            optimizer.zero_grad()
            losses.append(pm.train_step(pm.shard_batch(batch)).item())
            optimizer.step()
        found[key] = losses, {name: full(value) for name, value in pm.state_dict().items()}
    return found


def train_apart(ranks: int, microbatches: int) -> tuple[list[float], dict[str, Tensor]]:
    """Plain modules, one for each rank, with one optimizer; buffers are averaged every step."""
    model = model_of("mlp")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
    copies, losses = [copy.deepcopy(model) for _ in range(ranks)], []
    for batch in batches():
        total = 0.0
        for own, *rows in zip(copies, *(v.chunk(ranks) for v in batch.values()), strict=True):
            own.zero_grad()
            for x, y in zip(*(value.chunk(microbatches) for value in rows), strict=True):
                loss = own(x, y) / (ranks * microbatches)
                loss.backward()
                total += loss.item()
        for name, parameter in model.named_parameters():
            parameter.grad = sum(c.get_parameter(name).grad for c in copies)  # pyright: ignore
        optimizer.step()
        for name, buffer in model.named_buffers():
            moved = torch.stack([c.get_buffer(name) for c in copies])
            buffer.copy_(moved.mean(0) if moved.is_floating_point() else moved[0])
        for own in copies:
            own.load_state_dict(model.state_dict())
        losses.append(total)
    return losses, model.state_dict()


@pytest.mark.parametrize("ranks", [2, 4])
def test_training(ranks: int) -> None:
    keys = [k for k, o in PLANS.items() if plan_of(k).job.world_size == ranks]
    results = run_ranks(run_plans, ranks, keys, deadline_s=280)
    for key in keys:
        plan = plan_of(key)
        losses, state = train_apart(plan.mesh.dp, plan.num_microbatches)
        held: set[str] = set()
        for found in results:
            assert found[key][0] == pytest.approx(losses, rel=1e-9), key
            assert_parity(found[key][1], {n: state[n] for n in found[key][1]}, torch.float64)
            held |= set(found[key][1])
        assert held == set(state)


class Shared(nn.Module):
    """One norm, called ahead of and behind layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)
        self.layers = nn.ModuleList(NormedLayer(16) for _ in range(4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x)
        return (self.norm(x) - y.mean(1, keepdim=True)).square().mean()


def test_statistics_of_two_stages_are_refused() -> None:
    graph = capture(Shared().double(), batch_of(2), batch_norm="local").at_batch(ROWS)
    plan = make_plan(
        graph.fingerprint,
        global_batch=ROWS,
        pp=2,
        num_microbatches=2,
        schedule="1f1b",
        stages=stages_at(graph, (0, 3)),
        regions=greedy_regions(graph, 1),
        batch_norm="local",
    )
    with pytest.raises(UnsupportedModelError, match=r"norm\.running_mean is read in 2 stages"):
        emit_program(graph, plan)
