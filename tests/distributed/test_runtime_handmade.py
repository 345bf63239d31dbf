"""The runtime over a program written by hand: equal to one device under every ZeRO stage."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from unittest import mock

import pytest
import torch
from torch import nn

from autoplan.runtime import parallelize as parallelize_module
from autoplan.runtime.module import ParallelModule
from tests.distributed.handmade import Net, build_net, emitted_net, net_batch, net_graph
from tests.distributed.harness import run_ranks
from tests.distributed.parity import LOSS_RTOL, assert_parity, full
from tests.distributed.plans import make_plan

STEPS = 3
BATCH = 16


@dataclass(frozen=True)
class Cell:
    dp: int
    tp: int
    zero: int
    num_microbatches: int = 1
    dtype: torch.dtype = torch.float64
    hidden: int = 16
    optimizer: str = "adamw"


@dataclass
class Run:
    """What a training showed: losses by step, the first gradients and their norm, the weights."""

    losses: list[float]
    gradients: dict[str, torch.Tensor]
    norm: float
    weights: dict[str, torch.Tensor]


def make_net(cell: Cell) -> Net:
    torch.manual_seed(0)
    return Net(cell.hidden).to(cell.dtype)


def make_optimizer(name: str, parameters) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    return torch.optim.AdamW(parameters, lr=0.01, eps=1e-4)


def parallel_net(cell: Cell, precision="fp32") -> ParallelModule:
    model = make_net(cell)
    plan = make_plan(
        "net",
        global_batch=BATCH,
        dp=cell.dp,
        tp=cell.tp,
        zero=cell.zero,
        num_microbatches=cell.num_microbatches,
        precision=precision,
    )
    with mock.patch.multiple(
        parallelize_module,
        emit_program=lambda graph, plan: emitted_net(model, plan),
        build_module=build_net,
    ):
        return parallelize_module.parallelize(model, net_graph(model), plan)


def train_alone(cell: Cell) -> Run:
    model = make_net(cell)
    optimizer = make_optimizer(cell.optimizer, model.parameters())
    run = Run([], {}, 0.0, {})
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(**net_batch(BATCH, cell.dtype, seed=step))
        loss.backward()
        if step == 0:
            run.gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
        run.norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5).item()
        optimizer.step()
        run.losses.append(loss.item())
    run.weights = {n: p.detach() for n, p in model.named_parameters()}
    return run


def train_parallel(pm: ParallelModule, cell: Cell, *, by_step: bool) -> Run:
    optimizer = make_optimizer(cell.optimizer, pm.parameters())
    run = Run([], {}, 0.0, {})
    for step in range(STEPS):
        optimizer.zero_grad()
        batch = pm.shard_batch(net_batch(BATCH, cell.dtype, seed=step))
        if by_step:
            loss = pm.train_step(batch)
        else:
            loss = pm(**batch)
            loss.backward()
        if step == 0:
            run.gradients = {n: full(p.grad) for n, p in pm.named_parameters()}
        run.norm = pm.clip_grad_norm_(0.5).item()
        optimizer.step()
        run.losses.append(loss.item())
    run.weights = {n: full(p) for n, p in pm.named_parameters()}
    return run


def check_equal(got: Run, expected: Run, cell: Cell) -> None:
    rtol = LOSS_RTOL[cell.dtype]
    assert got.losses == pytest.approx(expected.losses, rel=rtol)
    assert got.norm == pytest.approx(expected.norm, rel=10 * rtol)
    assert_parity(got.gradients, expected.gradients)
    assert_parity(got.weights, expected.weights)


def compare_cells(rank: int, cells: list[Cell]) -> None:
    for cell in cells:
        expected = train_alone(cell)
        ways = [True] if cell.num_microbatches > 1 else [True, False]
        for by_step in ways:
            try:
                check_equal(
                    train_parallel(parallel_net(cell), cell, by_step=by_step), expected, cell
                )
            except Exception as error:
                raise AssertionError(f"{cell}, by_step={by_step}: {error}") from error


@pytest.mark.parametrize("mesh", [(2, 1), (1, 2), (2, 2), (4, 1)])
def test_training_equals_one_device(mesh):
    dp, tp = mesh
    cells = [
        Cell(dp, tp, zero, num_microbatches, dtype)
        for zero, (num_microbatches, dtype) in product(
            range(4), [(1, torch.float64), (2, torch.float32), (4, torch.float64)]
        )
    ]
    run_ranks(compare_cells, dp * tp, cells)


def test_sizes_that_do_not_divide():
    cells = [Cell(2, 2, zero, 2, hidden=6) for zero in range(4)]
    run_ranks(compare_cells, 4, cells)


def test_one_process_without_a_group():
    compare_cells(0, [Cell(1, 1, zero, m, optimizer="sgd") for zero in (0, 3) for m in (1, 4)])
