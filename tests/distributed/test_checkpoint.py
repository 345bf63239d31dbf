"""Checkpoints load under any plan, and training goes on as if it had never stopped."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from autoplan.errors import CheckpointError
from autoplan.runtime import checkpoint
from autoplan.runtime.module import ParallelModule
from autoplan.runtime.parallelize import parallelize
from tests.distributed.cases import Case, graph_of, greedy_plan, make_batches, make_model
from tests.distributed.handmade import BATCH, Cell, make_net, net_batch, parallel_net
from tests.distributed.harness import run_outcomes, run_ranks
from tests.distributed.training import (
    Run,
    check_equal,
    make_optimizer,
    train_alone,
    train_parallel,
)

BEFORE, AFTER = 2, 3
SPLIT = Cell(dp=2, tp=2, zero=3, hidden=6)


def batches(cell: Cell, start: int, count: int):
    return [net_batch(BATCH, cell.dtype, seed=step) for step in range(start, start + count)]


def train_and_save(rank: int, path: Path, cell: Cell) -> None:
    pm = parallel_net(cell)
    optimizer = make_optimizer(cell.optimizer, pm.parameters())
    train_parallel(pm, batches(cell, 0, BEFORE), optimizer)
    optimizer.param_groups[0]["lr"] *= 0.5
    pm.save(path, optimizer, extra={"step": BEFORE, "history": [1.5, None]})


def load_and_train(rank: int, path: Path, cell: Cell) -> None:
    pm = parallel_net(cell, seed=7)
    optimizer = make_optimizer(cell.optimizer, pm.parameters())
    train_parallel(pm, batches(cell, 50, 1), optimizer)
    assert pm.load(path, optimizer) == {"step": BEFORE, "history": [1.5, None]}
    optimizer.zero_grad()
    run = train_parallel(pm, batches(cell, BEFORE, AFTER), optimizer)
    check_equal(run, continued_alone(cell), cell.dtype)


def continued_alone(cell: Cell):
    model = make_net(cell)
    optimizer = make_optimizer(cell.optimizer, model.parameters())
    train_alone(model, batches(cell, 0, BEFORE), optimizer)
    optimizer.param_groups[0]["lr"] *= 0.5
    return train_alone(model, batches(cell, BEFORE, AFTER), optimizer)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_any_plan_loads_what_any_plan_saved(tmp_path, optimizer):
    split = replace(SPLIT, optimizer=optimizer)
    alone = Cell(hidden=6, optimizer=optimizer)
    run_ranks(train_and_save, 4, tmp_path / "split", split)
    for cell in (
        replace(split, tp=1, zero=0),
        replace(split, dp=1),
        replace(split, tp=1, zero=2, num_microbatches=2),
        replace(split, dp=4, tp=1, replicas=2),
    ):
        run_ranks(load_and_train, cell.dp * cell.tp, tmp_path / "split", cell)
    load_and_train(0, tmp_path / "split", alone)
    train_and_save(0, tmp_path / "alone", alone)
    run_ranks(load_and_train, 4, tmp_path / "alone", split)


def save_twice(rank: int, path: Path) -> None:
    pm = parallel_net(SPLIT)
    pm.save(path, extra={"save": 1})
    pm.save(path, extra={"save": 2})
    assert pm.load(path) == {"save": 2}


def test_saving_again_replaces_the_whole(tmp_path):
    run_ranks(save_twice, 4, tmp_path / "ckpt")
    assert len(list((tmp_path / "ckpt").iterdir())) == 2


def load_damaged(rank: int, path: Path) -> str:
    pm = parallel_net(Cell(dp=2, hidden=6), seed=3)
    before = {name: p.detach().clone() for name, p in pm.named_parameters()}
    with pytest.raises(CheckpointError) as error:
        pm.load(path)
    after = dict(pm.named_parameters())
    assert all(torch.equal(after[name], value) for name, value in before.items())
    return str(error.value)


def test_damage_that_one_rank_finds_stops_all(tmp_path):
    path = tmp_path / "ckpt"
    run_ranks(train_and_save, 4, path, SPLIT)
    file = next(path.glob("data-*/rank-00002.safetensors"))
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    messages = run_ranks(load_damaged, 2, path)
    assert any("rank-00002.safetensors is damaged" in message for message in messages)


def save_in_bf16(rank: int, path: Path) -> None:
    pm = parallel_net(Cell(dp=2, zero=1, dtype=torch.float32, precision="bf16"))
    optimizer = make_optimizer("adamw", pm.parameters())
    pm.train_step(pm.shard_batch(net_batch(BATCH, torch.float32)))
    optimizer.step()
    pm.save(path, optimizer)


def test_mixed_precision_saves_float32_weights(tmp_path):
    run_ranks(save_in_bf16, 2, tmp_path)
    pm = parallel_net(Cell(dtype=torch.float32))
    optimizer = make_optimizer("adamw", pm.parameters())
    pm.load(tmp_path, optimizer)
    assert {p.dtype for p in pm.parameters()} == {torch.float32}
    index = json.loads((tmp_path / "index.json").read_text())
    assert index["content"]["optimizer"]["class"] == "AdamW"


def die(*_args: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def save_and_lose_a_rank(rank: int, path: Path) -> None:
    pm = parallel_net(Cell(dp=2, zero=3), seed=9)
    if rank == 1:
        checkpoint.write_pieces = die
    pm.save(path)


def test_a_rank_killed_while_saving_leaves_the_old_one_whole(tmp_path):
    alone = parallel_net(Cell())
    alone.save(tmp_path, extra={"save": "old"})
    outcomes = run_outcomes(save_and_lose_a_rank, 2, tmp_path, timeout_s=10)
    assert outcomes[1].died
    assert not outcomes[0].ok
    pm = parallel_net(Cell(), seed=5)
    assert pm.load(tmp_path) == {"save": "old"}
    expected = dict(alone.named_parameters())
    assert all(torch.equal(p, expected[name]) for name, p in pm.named_parameters())


TIED = Case("gpt tied", (2, 2), 3, False, torch.float64, 1, "adamw")
ONE = replace(TIED, mesh=(1, 1), zero=0)


def parallel_gpt(case: Case) -> ParallelModule:
    graph = graph_of(case.model, case.dtype)
    return parallelize(make_model(case.model, case.dtype), graph, greedy_plan(graph, case))


def train_and_save_gpt(rank: int, path: Path, case: Case) -> None:
    pm = parallel_gpt(case)
    optimizer = make_optimizer(case.optimizer, pm.parameters())
    train_parallel(pm, make_batches(case.model, case.dtype), optimizer)
    pm.save(path, optimizer)


def load_and_train_gpt(rank: int, path: Path, case: Case) -> Run:
    pm = parallel_gpt(case)
    optimizer = make_optimizer(case.optimizer, pm.parameters())
    pm.load(path, optimizer)
    return train_parallel(pm, make_batches(case.model, case.dtype), optimizer)


def test_a_tied_model_goes_on_under_another_plan(tmp_path):
    graph_of(TIED.model, TIED.dtype)
    run_ranks(train_and_save_gpt, 4, tmp_path, TIED)
    model, batches = make_model(TIED.model, TIED.dtype), make_batches(TIED.model, TIED.dtype)
    optimizer = make_optimizer(TIED.optimizer, model.parameters())
    train_alone(model, batches, optimizer)
    expected = train_alone(model, batches, optimizer)
    for case in (replace(TIED, mesh=(1, 2)), replace(TIED, mesh=(2, 1), zero=1)):
        for run in run_ranks(load_and_train_gpt, 2, tmp_path, case):
            check_equal(run, expected, TIED.dtype)
    check_equal(load_and_train_gpt(0, tmp_path, ONE), expected, TIED.dtype)
    assert {"tokens.weight", "head.weight"} <= set(parallel_gpt(ONE).state_dict())
