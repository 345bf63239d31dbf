"""Operators without a rule: replicated over tp, and over the batch split where that is shown."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import autoplan
from autoplan.codegen.pipeline import emit_choices
from autoplan.errors import UnsupportedModelError
from autoplan.report.text import print_report
from autoplan.sharding.batch import batch_layout
from autoplan.sharding.rules import opaque_operators
from autoplan.trace.capture import capture
from cost_models.compute import kernel_s
from cost_models.host_work import piece_read_s
from cost_models.work import Streaming
from hardware_profiles.load import load
from tests.parity.choose import random_program, replicated
from tests.parity.models import initialise
from tests.parity.simulate import assert_same, one_device, sharded


def _operator(name, forward, backward):
    """A custom operator of a tensor ``x`` and a weight ``w``, with a list that sizes nothing."""

    @torch.library.custom_op(f"opaque_tests::{name}", mutates_args=())
    def op(x: Tensor, w: Tensor, size: list[int]) -> Tensor:
        return forward(x, w).clone()

    @op.register_fake
    def _(x, w, size):
        return forward(x, w).clone()

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:2])

    op.register_autograd(
        lambda ctx, grad: (*backward(grad, *ctx.saved_tensors), None), setup_context=setup_context
    )
    return op


def _derived(forward):
    def backward(grad, x, w):
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in (x, w)]
            return torch.autograd.grad(forward(*leaves), leaves, grad)

    return backward


FORWARDS = {
    "scaled": lambda x, w: torch.tanh(x) * w,
    "total": lambda x, w: (torch.sin(x) * w).sum(),
    "centred": lambda x, w: (x - x.mean(0)) * w,
}
SILENT = {"chosen": lambda x, w: torch.where(w == 1, x, 0.0 * x).mean()}
"""Zero for the numbers that a trial draws."""
OPERATORS = {
    name: _operator(name, made, _derived(made)) for name, made in (FORWARDS | SILENT).items()
}


class Custom(nn.Module):
    """Two layers around an operator; its list of sizes is that of no tensor."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)
        self.w = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        y = OPERATORS[self.name](self.first(x), self.w, [1])
        return y if not y.dim() else (self.last(y) ** 2).sum()


def _case(name):
    model = initialise(Custom(name), torch.float64)
    batch = {"x": torch.randn(6, 8, dtype=torch.float64)}
    return model, batch, capture(model, batch).at_batch(6)


@pytest.mark.parametrize("name", FORWARDS)
def test_an_opaque_operator_equals_one_device_over_tp(name):
    model, batch, graph = _case(name)
    truth = one_device(model, lambda: model(**batch))
    for seed in range(3):
        assert_same(sharded(random_program(graph, 2, seed), model, batch), truth)


@pytest.mark.parametrize("name", ["scaled", "total"])
@pytest.mark.parametrize(("dp", "num_microbatches"), [(2, 1), (1, 3), (2, 3)])
def test_the_batch_is_split_where_samples_are_apart(name, dp, num_microbatches):
    model, batch, graph = _case(name)
    emitted = random_program(graph, 2, 0, dp=dp, num_microbatches=num_microbatches)
    assert_same(sharded(emitted, model, batch), one_device(model, lambda: model(**batch)))


def test_what_mixes_samples_keeps_the_batch_in_one_piece():
    _, _, graph = _case("centred")
    with pytest.raises(UnsupportedModelError, match=r"opaque_tests\.centred.*test_opaque\.py"):
        emit_choices(replicated(graph, 1, dp=2), "custom")


@pytest.mark.parametrize(
    ("name", "apart"), [("scaled", True), ("centred", False), ("chosen", False)]
)
def test_opaque_operators_are_listed_with_lines(name, apart):
    _, _, graph = _case(name)
    (found,) = opaque_operators(graph)
    assert found.target == f"opaque_tests.{name}.default"
    assert len(found.calls) == 1
    assert "test_opaque.py" in graph.by_name[found.calls[0]].where
    assert found.keeps_samples_apart == apart
    assert found.name == f"opaque_tests::{name}"


@pytest.mark.parametrize("name", FORWARDS)
def test_a_plan_names_and_prices_what_has_no_rule(name):
    model, batch = Custom(name), {"x": torch.randn(6, 8)}
    job = {"cluster": "cpu-gloo", "gpus_per_node": 2, "global_batch": 12, "precision": "fp32"}
    plan = autoplan.plan(model, batch, **job, pins={"tp": 2})
    (found,) = plan.opaque
    apart = name != "centred"
    assert (found.operator, found.calls) == (f"opaque_tests::{name}", 1)
    assert found.splits_batch == apart
    samples = plan.microbatch
    results = {"total": 1}.get(name, 8 * samples)
    moved = 4 * (8 * samples + 8 + results)  # forward: x, w and the results, once each
    device = load("cpu-gloo").device
    expected_s = kernel_s(Streaming(bytes=moved), device) + kernel_s(
        Streaming(bytes=2 * moved), device
    )
    assert found.microbatch_s == pytest.approx(expected_s + piece_read_s(device))
    printed = io.StringIO()
    print_report(plan, Console(file=printed, width=100))
    section = printed.getvalue().partition("Without a rule")[2].partition("Against other")[0]
    assert f"opaque_tests::{name}" in section
    assert ("split" if apart else "in one piece") in section


def test_what_reads_no_batch_leaves_the_batch_alone():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.v = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))

        def forward(self, x: Tensor) -> Tensor:
            return (x * OPERATORS["centred"](self.w, self.v, [1])).sum()

    graph = capture(Model(), {"x": torch.randn(4, 8)})
    (found,) = opaque_operators(graph)
    assert found.keeps_samples_apart
    assert batch_layout(graph).mixing == ()


def _drawing(name, **tags):
    @torch.library.custom_op(f"opaque_tests::{name}", mutates_args=(), **tags)
    def noisy(x: Tensor) -> Tensor:
        return x + torch.rand_like(x)

    noisy.register_fake(torch.empty_like)
    noisy.register_autograd(lambda _, grad: grad)

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return noisy(x * self.w).sum()

        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(8))

    return Model(), {"x": torch.randn(4, 8)}


def test_what_draws_at_random_must_say_so():
    with pytest.raises(
        UnsupportedModelError, match=r"draws_unsaid\.default draws at random.*:\d+\)"
    ):
        capture(*_drawing("draws_unsaid"))
    said = capture(*_drawing("draws_said", tags=torch.Tag.nondeterministic_seeded))
    emit_choices(replicated(said, 1), "alone")
    with pytest.raises(UnsupportedModelError, match=r"draws_said\.default .* draws random numbers"):
        emit_choices(replicated(said, 2), "over tp")


def test_an_operator_that_does_not_run_here_is_not_split():
    @torch.library.custom_op("opaque_tests::elsewhere", mutates_args=())
    def elsewhere(x: Tensor) -> Tensor:
        raise RuntimeError("no kernel for this device")

    elsewhere.register_fake(torch.empty_like)
    elsewhere.register_autograd(lambda _, grad: grad)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return elsewhere(self.first(x)).sum()

    graph = capture(Model(), {"x": torch.randn(4, 8)}).at_batch(4)
    (found,) = opaque_operators(graph)
    assert not found.keeps_samples_apart
