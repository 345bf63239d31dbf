"""``pm.measure``: seconds and bytes of training steps, which leave everything as it was."""

from __future__ import annotations

import pytest
import torch

import autoplan
from autoplan.errors import PlanError
from autoplan.measurement import StepMeasurement
from autoplan.runtime.parallelize import parallelize
from autoplan.runtime.pass_clock import PassClock
from autoplan.runtime.weights import local
from tests.distributed.cases import Case, graph_of, greedy_plan, make_batches, make_model
from tests.distributed.harness import run_ranks
from tests.distributed.pipelines import Cell, pipeline_plan
from tests.parity import normed

STEPS = 3
TP = Case("gpt", (1, 2), 0, False, torch.float64, 2, "adamw")
ZERO_3 = Case("mlp", (2, 1), 3, False, torch.float64, 1, "adamw")
PIPELINE = Cell(model="gpt tied", dp=1, zero=0)


def measured(rank: int, case: Case | Cell, steps: int = STEPS) -> tuple[StepMeasurement, int]:
    """The measurement, and this rank's bytes of parameters."""
    graph = graph_of(case.model, case.dtype)
    plan = greedy_plan(graph, case) if isinstance(case, Case) else pipeline_plan(graph, case)
    pm = parallelize(make_model(case.model, case.dtype), graph, plan)
    batch = pm.shard_batch(make_batches(case.model, case.dtype)[0])
    before = {name: local(p).clone() for name, p in pm.named_parameters()}
    draws = pm._state.random.document()
    found = pm.measure(batch, steps)
    for name, parameter in pm.named_parameters():
        assert torch.equal(before[name], local(parameter))
        assert parameter.grad is None
    assert pm._state.random.document() == draws
    return found, sum(value.nbytes for value in before.values())


@pytest.mark.parametrize("case", [TP, ZERO_3, PIPELINE], ids=["tp", "zero 3", "pipeline"])
def test_every_rank_has_the_figures_of_all(case: Case | Cell) -> None:
    outcomes = run_ranks(measured, case.world_size, case)
    first, _ = outcomes[0]
    assert all(found == first for found, _ in outcomes)
    assert [rank.rank for rank in first.ranks] == list(range(case.world_size))
    assert first.step_s.low_s <= first.step_s.median_s <= first.step_s.high_s
    for rank, (_, parameters) in zip(first.ranks, outcomes, strict=True):
        held = rank.held_bytes
        assert held["parameters"] == parameters
        assert held["gradients"] == parameters
        assert 2 * parameters <= held["optimizer_state"] < 2 * parameters + 1000
        assert rank.peak_bytes > sum(held.values())
        passes = (rank.forward_s or 0) + (rank.backward_s or 0)
        assert 0 < passes < rank.busy_s
        assert 0 < rank.optimizer_s < rank.busy_s
        assert rank.compute_s is not None
        assert rank.compute_s > 0
    assert sum(message.count for message in first.messages) > 0


def test_a_rank_alone_sends_nothing() -> None:
    found, _ = measured(0, Case("mlp", (1, 1), 0, False, torch.float32, 2, "adamw"))
    assert found.messages == ()
    assert found.ranks[0].waiting_s == 0


def test_running_statistics_are_put_back() -> None:
    pm = autoplan.compile(
        normed.model_of("mlp"), normed.batch_of(4), global_batch=4, precision="fp32"
    )
    before = {name: value.clone() for name, value in pm.named_buffers()}
    pm.measure(normed.batch_of(4), STEPS)
    after = dict(pm.named_buffers())
    assert after
    assert all(torch.equal(after[name], value) for name, value in before.items())
    pm.train_step(normed.batch_of(4))
    assert not all(torch.equal(after[name], value) for name, value in before.items())


def test_two_steps_are_refused() -> None:
    with pytest.raises(PlanError, match="2 steps: measure 3 or more"):
        measured(0, Case("mlp", (1, 1), 0, False, torch.float32, 2, "adamw"), steps=2)


def test_what_is_nested_counts_once() -> None:
    """A clock that moves by 1 at every look: a call takes as long as what it holds looks."""
    ticks = iter(range(100))
    clock = PassClock(lambda: float(next(ticks)))
    program = torch.nn.Linear(2, 2)
    with clock.timing([program]):
        program(torch.ones(1, 2)).sum().backward()
        assert (clock.forward_s, clock.backward_s, clock.waiting_s) == (1, 1, 0)
        torch.autograd.backward(_Again.apply(torch.ones((), requires_grad=True)))
        assert clock.backward_s == 2
    program(torch.ones(1, 2))
    assert clock.forward_s == 1


class _Again(torch.autograd.Function):
    """Its backward runs a backward."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            torch.autograd.backward(torch.ones((), requires_grad=True) * 2)
        return grad
