"""Training by compiled programs on processes is training on one device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from autoplan.errors import PlanError
from autoplan.runtime.parallelize import parallelize
from autoplan.runtime.recompute import recomputing, runs_again
from autoplan.trace.graph import OpGraph
from cost_models.schedules import ScheduleName
from tests.distributed import test_dropout as dropping
from tests.distributed.cases import Case, graph_of, greedy_plan, make_batches, make_model
from tests.distributed.harness import run_ranks
from tests.distributed.pipelines import Cell, pipeline_plan
from tests.distributed.training import (
    check_equal,
    check_stages_equal,
    make_optimizer,
    train_alone,
    train_parallel,
)

FLOAT64 = torch.float64
CASES = [
    Case("gpt", (1, 2), 0, True, FLOAT64, 1, "adamw"),
    Case("gpt tied", (2, 1), 3, False, FLOAT64, 2, "adamw"),
    Case("gpt", (2, 1), 1, True, FLOAT64, 2, "adamw"),
]
QUICK = Case("mlp", (1, 2), 0, False, FLOAT64, 2, "adamw")
PIPELINE = Cell(model="gpt", schedule="1f1b", num_microbatches=4)


def graph_and_plan(way: Case | Cell) -> tuple[OpGraph, Any]:
    graph = graph_of(way.model, FLOAT64)
    return graph, pipeline_plan(graph, way) if isinstance(way, Cell) else greedy_plan(graph, way)


def run_compiled(rank: int, way: Case | Cell, backend: str) -> Any:
    torch._dynamo.config.suppress_errors = False
    graph, plan = graph_and_plan(way)
    pm = parallelize(make_model(way.model, FLOAT64), graph, plan, seed=0, compiler=backend)
    optimizer = make_optimizer("adamw", pm.parameters())
    return train_parallel(pm, make_batches(way.model, FLOAT64), optimizer)


def check(way: Case | Cell, backend: str) -> None:
    model = make_model(way.model, FLOAT64)
    optimizer = make_optimizer("adamw", model.parameters())
    expected = train_alone(model, make_batches(way.model, FLOAT64), optimizer)
    compare = check_stages_equal if isinstance(way, Cell) else check_equal
    for found in run_ranks(run_compiled, 2, way, backend, deadline_s=280):
        compare(found, expected, FLOAT64)


def test_tensor_parallel_blocks() -> None:
    check(QUICK, "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("way", [*CASES, PIPELINE], ids=str)
def test_every_kind_of_parallelism(way: Case | Cell) -> None:
    check(way, "aot_eager")


@pytest.mark.slow
def test_kernels_of_inductor() -> None:
    check(QUICK, "inductor")


def run_dropout(rank: int, key: str) -> list[float]:
    graph, plan = dropping.graph_of("gpt"), dropping.plan_of("gpt", dropping.PLANS[key])
    losses = []
    for compiler in (None, "aot_eager"):
        model = dropping.model_of("gpt")
        pm = parallelize(model, graph, plan, seed=dropping.SEED, compiler=compiler)
        optimizer = torch.optim.SGD(pm.parameters(), lr=0.1)
        for batch in dropping.batches("gpt")[:2]:
            optimizer.zero_grad()
            losses.append(pm.train_step(pm.shard_batch(batch)).item())
            optimizer.step()
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("key", ["tp", "dp, ZeRO 3, recomputed", "pp, 1F1B, recomputed"])
def test_masks_are_those_of_eager(key: str) -> None:
    for losses in run_ranks(run_dropout, 2, key, deadline_s=280):
        assert losses[2:] == pytest.approx(losses[:2], rel=1e-12)


@pytest.mark.parametrize(
    ("schedule", "backend", "message"),
    [
        ("zero_bubble", "aot_eager", "zero_bubble splits the backward"),
        ("1f1b", "fast", "torch_compile='fast' is no backend: use one of .*inductor"),
    ],
)
def test_what_cannot_run_compiled_is_refused(
    schedule: ScheduleName, backend: str, message: str
) -> None:
    graph, plan = graph_and_plan(Cell(model="gpt", schedule=schedule))
    with pytest.raises(PlanError, match=message):
        parallelize(make_model("gpt", FLOAT64), graph, plan, compiler=backend)


def test_forwards_with_operators_that_run_again_are_known() -> None:
    assert runs_again(recomputing(run_dropout))
    assert not runs_again(run_dropout)
