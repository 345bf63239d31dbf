"""What lasts between the steps of a pipeline: checkpoints, evaluation, accumulated gradients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from autoplan.errors import PlanError
from autoplan.runtime.module import ParallelModule
from autoplan.runtime.parallelize import parallelize
from cost_models.zero import zero_stage
from tests.distributed.cases import Case, graph_of, greedy_plan, make_batches, make_model
from tests.distributed.harness import run_ranks
from tests.distributed.parity import assert_parity, full
from tests.distributed.pipelines import Cell, parallel, pipeline_plan
from tests.distributed.training import (
    Run,
    check_stages_equal,
    make_optimizer,
    train_alone,
    train_parallel,
)

FOUR = (0, 1, 2, 3)
TIED = Cell(
    model="gpt tied", dp=2, zero=1, firsts=FOUR, schedule="interleaved_1f1b", outermost="dp"
)
FLAT = Case("gpt tied", (2, 2), 1, False, torch.float64, 1, "adamw")
BATCHES = make_batches(TIED.model, TIED.dtype)


def flat(case: Case) -> ParallelModule:
    graph = graph_of(case.model, case.dtype)
    return parallelize(make_model(case.model, case.dtype), graph, greedy_plan(graph, case))


def made(way: Cell | Case) -> ParallelModule:
    return parallel(way) if isinstance(way, Cell) else flat(way)


def train_and_save(rank: int, path: Path, way: Cell | Case) -> None:
    pm = made(way)
    optimizer = make_optimizer("adamw", pm.parameters())
    train_parallel(pm, BATCHES, optimizer)
    pm.save(path, optimizer, extra={"step": len(BATCHES)})


def load_and_train(rank: int, path: Path, way: Cell | Case) -> Run:
    pm = made(way)
    optimizer = make_optimizer("adamw", pm.parameters())
    assert pm.load(path, optimizer) == {"step": len(BATCHES)}
    return train_parallel(pm, BATCHES, optimizer)


def test_checkpoints_go_from_any_plan_to_any_plan(tmp_path):
    graph_of(TIED.model, TIED.dtype)
    model = make_model(TIED.model, TIED.dtype)
    optimizer = make_optimizer("adamw", model.parameters())
    train_alone(model, BATCHES, optimizer)
    expected = train_alone(model, BATCHES, optimizer)
    one = replace(FLAT, mesh=(1, 1), zero=0)
    zbv = Cell(model=TIED.model, firsts=FOUR, schedule="zbv", tp=2)
    ways = [
        (TIED, [one, zbv, replace(TIED, firsts=(0, 3), schedule="1f1b", dp=1, zero=0)]),
        (FLAT, [replace(TIED, outermost="pp")]),
    ]
    for index, (writer, readers) in enumerate(ways):
        path = tmp_path / str(index)
        run_ranks(train_and_save, writer.world_size, path, writer)
        for reader in readers:
            for run in run_ranks(load_and_train, reader.world_size, path, reader):
                check_stages_equal(run, expected, TIED.dtype)


def evaluate(rank: int, cells: list[Cell]) -> None:
    for cell in cells:
        pm, model = parallel(cell), make_model(cell.model, cell.dtype)
        for batch in BATCHES:
            with torch.no_grad():
                loss = pm(**pm.shard_batch(batch))
            assert loss.item() == pytest.approx(model(**batch).item(), rel=1e-9)
            assert pm.train_step(pm.shard_batch(batch)).item() == pytest.approx(loss.item())
            model(**batch).backward()
        assert_parity(
            {name: full(p.grad) for name, p in pm.named_parameters()},
            {n: p.grad for n, p in model.named_parameters() if n in dict(pm.named_parameters())},
            cell.dtype,
        )
        with pytest.raises(PlanError, match="pipeline of pp = 2"):
            pm(**pm.shard_batch(BATCHES[0]))


def test_evaluation_between_steps_whose_gradients_add_up():
    graph_of(TIED.model, TIED.dtype)
    whole = replace(TIED, zero=0, schedule="zbv", num_microbatches=2)
    run_ranks(evaluate, 4, [TIED, whole, replace(TIED, firsts=(0, 2), schedule="1f1b", zero=2)])


def count_messages(rank: int, cell: Cell) -> dict[str, int]:
    pm = parallel(cell)
    batch = pm.shard_batch(BATCHES[0])
    pm.train_step(batch)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        pm.train_step(batch)
    names = [event.name for event in profile.events()]
    return {
        "gather": sum(
            names.count(name)
            for name in ("c10d::_allgather_base_", "c10d::allgather_into_tensor_coalesced_")
        ),
        "reduce_scatter": names.count("c10d::_reduce_scatter_base_"),
        "send": names.count("c10d::send"),
    }


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_messages_are_those_of_the_priced_table(zero):
    """Each rank has two units: a block, and the root of a stage without one."""
    cell = replace(TIED, zero=zero)
    stage = zero_stage(zero, pipeline=True, accumulates=True)
    units = 2
    graph_of(TIED.model, TIED.dtype)
    for rank, found in enumerate(run_ranks(count_messages, 4, cell)):
        assert found["gather"] == units * stage.gathers_per_step
        assert found["reduce_scatter"] == (units * stage.reductions_per_step if zero else 0)
        assert found["send"] == 3 * cell.num_microbatches, rank


def feed_differently(rank: int) -> None:
    pm = parallel(Cell(model="gpt"))
    with pytest.raises(PlanError, match="the 2 ranks of data rank 0 are fed different batches"):
        pm.train_step(BATCHES[rank])


def test_stages_that_are_fed_different_batches_are_told():
    graph_of("gpt", torch.float64)
    run_ranks(feed_differently, 2)


def refuse(rank: int) -> None:
    cell = Cell(model="gpt")
    graph = graph_of(cell.model, cell.dtype)
    plan = pipeline_plan(graph, cell)
    again = tuple(replace(r, recomputed=r.blocks) for r in plan.regions)
    alone = tuple(replace(r, recomputed_operators=tuple(r.operators)) for r in plan.regions)
    backwards = tuple(replace(s, rank=1 - s.rank) for s in plan.stages[::-1])
    for wrong, message in (
        (replace(plan, schedule="zero_bubble", regions=again), "splits the backward"),
        (replace(plan, schedule="none"), "the plan's pipeline cannot run: no schedule 'none'"),
        (replace(plan, schedule="dualpipe"), "schedule dualpipe cannot be run"),
        (replace(plan, stages=backwards), "do not cover the model in order"),
        (replace(plan, stages=()), "pp = 2 and 0 stages"),
        (replace(plan, regions=alone), "where nothing can run again in the backward"),
        (
            replace(plan, stages=tuple(replace(s, rank=1 - s.rank) for s in plan.stages)),
            "stage 0 is on rank 1 of the pipeline, but 1f1b runs it on rank 0",
        ),
    ):
        with pytest.raises(PlanError, match=message):
            parallelize(make_model(cell.model, cell.dtype), graph, wrong)


def test_what_cannot_run_is_refused_by_name():
    graph_of("gpt", torch.float64)
    run_ranks(refuse, 2)
