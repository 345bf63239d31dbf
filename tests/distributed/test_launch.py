"""Rank 0's plan, or rank 0's refusal, on every rank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import autoplan
from autoplan import launch
from autoplan.errors import InfeasibleError
from autoplan.plan import Plan, StageEstimate
from tests.distributed.cases import graph_of, make_batches, make_model
from tests.distributed.harness import RankError, run_ranks
from tests.distributed.pipelines import Cell, pipeline_plan
from tests.robustness import models
from tests.unit.sample_plan import PLAN


def test_every_rank_gets_the_plan_of_rank_0() -> None:
    assert run_ranks(_agreed, 3) == [PLAN, PLAN, PLAN]


def _agreed(rank: int) -> Plan:
    return launch.agree(lambda: PLAN if rank == 0 else replace(PLAN, zero=3))


def test_a_refusal_reaches_every_rank_in_its_own_class() -> None:
    assert run_ranks(_refused, 2) == ["activations take too much"] * 2


def _refused(rank: int) -> str:
    with pytest.raises(InfeasibleError) as caught:
        launch.agree(_infeasible)
    return str(caught.value)


def _infeasible() -> Plan:
    assert dist.get_rank() == 0, "only rank 0 plans"
    raise InfeasibleError("activations take too much")


def test_a_fault_of_rank_0_ends_all_ranks() -> None:
    with pytest.raises(RankError) as caught:
        run_ranks(_faulty, 2)
    assert "PlanError: planning failed on rank 0 with ZeroDivisionError" in str(caught.value)


def _faulty(rank: int) -> Plan:
    return launch.agree(lambda: 1 // 0)  # pyright: ignore[reportArgumentType]


def test_one_process_needs_no_group() -> None:
    assert not dist.is_initialized()
    assert launch.agree(lambda: PLAN) is PLAN
    assert launch.local_shape() == (1, 1)


def test_nodes_and_ranks_of_a_node() -> None:
    assert run_ranks(_shape, 4) == [(2, 2)] * 4


def _shape(rank: int) -> tuple[int, int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_WORLD_SIZE", "2")
        return launch.local_shape()


def test_compile_runs_the_pipeline_of_a_plan_file(tmp_path) -> None:
    cell = Cell(model="gpt")
    plan = pipeline_plan(graph_of(cell.model, cell.dtype), cell)
    estimates = (StageEstimate(devices=1, compute_s=0, memory=PLAN.estimate.stages[0].memory),) * 2
    path = tmp_path / "plan.json"
    autoplan.save_plan(replace(plan, estimate=replace(plan.estimate, stages=estimates)), path)
    model, batch = make_model(cell.model, cell.dtype), make_batches(cell.model, cell.dtype)[0]
    expected = model(**batch).item()
    assert run_ranks(_compiled_pipeline, 2, path) == [pytest.approx(expected, rel=1e-9)] * 2


def _compiled_pipeline(rank: int, path: Path) -> float:
    model, batch = make_model("gpt", torch.float64), make_batches("gpt", torch.float64)[0]
    pm = autoplan.compile(model, batch, plan=path)
    return pm.train_step(pm.shard_batch(batch)).item()


def test_compile_plans_for_the_ranks_that_run() -> None:
    model, _ = models.small()
    generator = torch.Generator().manual_seed(0)
    batch = {name: torch.randn(4, 8, generator=generator) for name in ("x", "y")}
    expected = model(**batch).item()
    results = run_ranks(_compiled_loss, 2, batch)
    assert [degrees for degrees, _ in results] == [(2, 1), (2, 1)]
    assert [loss for _, loss in results] == pytest.approx([expected] * 2, rel=1e-5)


def _compiled_loss(rank: int, batch: dict[str, torch.Tensor]) -> tuple[tuple[int, int], float]:
    model, inputs = models.small()
    pm = autoplan.compile(model, inputs, global_batch=4, precision="fp32", pins={"tp": 1})
    loss = pm.train_step(pm.shard_batch(batch)).item()
    return (pm.plan.mesh.dp, pm.plan.mesh.tp), loss
