"""Training with a scaled loss, overflows on single ranks among its steps, equals one device."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.func import functional_call

from autoplan.errors import PlanError
from autoplan.runtime import module as module_of
from autoplan.runtime.module import ParallelModule
from autoplan.runtime.parallelize import parallelize
from autoplan.runtime.weights import local
from tests.distributed.cases import Case, graph_of, greedy_plan, make_batches, make_model
from tests.distributed.harness import run_ranks
from tests.distributed.parity import assert_parity, full
from tests.distributed.pipelines import Cell, pipeline_plan
from tests.distributed.training import make_optimizer

STEPS, OVERFLOWS, BROKEN_RANK = 5, 2, 1
F64, F16 = torch.float64, torch.float16
CASES: dict[str, Case | Cell] = {
    "tensor parallel": Case("gpt", (2, 2), 0, False, F64, 2, "sgd"),
    "zero 3": Case("llama", (2, 2), 3, False, F64, 1, "sgd"),
    "pipeline": Cell(model="gpt", dp=2, zero=1),
    "pipeline of split backwards": Cell(model="gpt", tp=2, schedule="zero_bubble"),
}


@dataclass
class Scaled:
    """What the steps showed; ``scales`` are those after each."""

    losses: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)


def run(
    parameters: dict[str, nn.Parameter],
    step: Callable[[int, GradScaler], Tensor],
    scaler: GradScaler,
) -> Scaled:
    found = Scaled()
    optimizer = make_optimizer("sgd", parameters.values())
    for index in range(STEPS):
        before = {name: local(p).clone() for name, p in parameters.items()}
        found.losses.append(step(index, scaler).item())
        old = scaler.get_scale()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        found.scales.append(scaler.get_scale())
        stays = all(torch.equal(before[name], local(p)) for name, p in parameters.items())
        assert stays == (scaler.get_scale() < old), "a step is skipped where the scale falls"
    found.weights = {name: full(p) for name, p in parameters.items()}
    return found


def parallel(pm: ParallelModule, case: Case | Cell, rank: int, overflow: int | None) -> Scaled:
    """Overflows on one rank alone in the step of this number."""
    batches = make_batches(case.model, case.dtype) * 2

    def step(index: int, scaler: GradScaler) -> Tensor:
        with _overflow(rank == BROKEN_RANK and index == overflow):
            return pm.train_step(pm.shard_batch(batches[index]), scaler=scaler)

    return run(dict(pm.named_parameters()), step, _scaler(case.dtype))


def _overflow(happens: bool) -> AbstractContextManager:
    share = module_of.share_overflow

    def broken(parameters: object, mesh: object) -> None:
        owned = list(parameters)  # pyright: ignore[reportArgumentType, reportCallIssue]
        local(owned[-1].grad).view(-1)[-1] = math.nan
        share(owned, mesh)  # pyright: ignore[reportArgumentType]

    return mock.patch.object(module_of, "share_overflow", broken) if happens else nullcontext()


def alone(case: Case | Cell, overflow: int | None) -> Scaled:
    model = make_model(case.model, torch.float32 if case.dtype == F16 else case.dtype)
    parameters, batches = dict(model.named_parameters()), make_batches(case.model, case.dtype) * 2

    def step(index: int, scaler: GradScaler) -> Tensor:
        used = {name: p.to(case.dtype) for name, p in parameters.items()}
        output = functional_call(model, used, kwargs=batches[index])
        loss = output if isinstance(output, Tensor) else output.loss
        scaler.scale(loss).backward()  # pyright: ignore[reportAttributeAccessIssue]
        if index == overflow:
            next(iter(parameters.values())).grad[0, 0] = math.inf  # pyright: ignore
        return loss.detach()

    return run(parameters, step, _scaler(case.dtype))


def _scaler(dtype: torch.dtype) -> GradScaler:
    """Of float16 it starts so high that the first step overflows."""
    start = 2.0**28 if dtype == F16 else 2.0**10
    return GradScaler("cpu", init_scale=start, backoff_factor=2.0**-16, growth_interval=2)


def compare(rank: int, names: list[str]) -> None:
    for name in names:
        case = CASES[name]
        graph, model = graph_of(case.model, case.dtype), make_model(case.model, case.dtype)
        plan = greedy_plan(graph, case) if isinstance(case, Case) else pipeline_plan(graph, case)
        found = parallel(parallelize(model, graph, plan), case, rank, OVERFLOWS)
        expected = alone(case, OVERFLOWS)
        assert found.scales == expected.scales, name
        lowest = torch.float32 if case.model == "llama" else F64
        assert found.losses == pytest.approx(expected.losses, rel=1e-5)
        assert_parity(found.weights, {n: expected.weights[n] for n in found.weights}, lowest)


def test_an_overflow_on_one_rank_is_one_on_all() -> None:
    for case in CASES.values():
        graph_of(case.model, case.dtype)
    run_ranks(compare, 4, list(CASES))


def _half(rank: int, case: Case) -> Scaled:
    graph, model = graph_of(case.model, case.dtype), make_model(case.model, torch.float32)
    plan = greedy_plan(graph, case, "fp16")
    pm = parallelize(model, graph, plan)
    with pytest.raises(PlanError, match=r"computes in fp16, .*GradScaler"):
        pm.train_step(pm.shard_batch(make_batches(case.model, F16)[0]))
    return parallel(pm, case, rank, None)


def test_fp16_from_a_scale_that_overflows() -> None:
    case = Case("gpt", (2, 2), 0, False, F16, 2, "sgd")
    graph_of(case.model, case.dtype)
    found = run_ranks(_half, 4, case)
    expected = alone(case, None)
    assert expected.scales[0] < 2.0**28
    for outcome in found:
        assert outcome.scales == expected.scales
        assert outcome.losses == found[0].losses
        assert outcome.losses == pytest.approx(expected.losses, rel=5e-3)


def test_whole_beside_split_parameters_are_refused() -> None:
    split, whole = nn.Linear(2, 2).weight, nn.Parameter(torch.zeros(()))
    run_ranks(partial(_mixed, split, whole), 1)


def _mixed(split: nn.Parameter, whole: nn.Parameter, rank: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (1,))
    shared = nn.Parameter(distribute_tensor(split, mesh, [Shard(0)]))
    with pytest.raises(PlanError, match="scale is whole on every rank and other parameters are"):
        module_of.check_scalable({"weight": shared, "scale": whole})
