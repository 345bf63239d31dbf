"""Arithmetic in place is traced as arithmetic where that is the same, and refused elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from autoplan.codegen.pipeline import emit_choices
from autoplan.errors import UnsupportedModelError
from autoplan.trace.capture import capture
from tests.parity.choose import replicated
from tests.parity.simulate import assert_same, one_device, sharded

BATCH = 4


class Model(nn.Module):
    """Applies ``change`` between two layers."""

    def __init__(self, change):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("offset", torch.ones(4))
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.change(self, self.first(x), x)).square().mean()


def _sum(model, y, x):
    y += x
    return y


def _twice(model, y, x):
    y += x
    y *= x
    y -= model.offset
    return y


def _read_before(model, y, x):
    total = y.sum(-1, keepdim=True)
    y += total
    return y * total


def _view_after(model, y, x):
    y.add_(x, alpha=2.0)
    return torch.cat([y[:, :2], y.flip(-1)[:, :2]], -1) + y


def _of_a_view(model, y, x):
    halves = (y + x).view(-1, 2, 2)
    halves /= 3.0
    return halves.flatten(1)


def _activation(model, y, x):
    return nn.functional.relu(nn.functional.silu(y + x, inplace=True) * y, inplace=True)


def _bounds_and_masks(model, y, x):
    z = (y * 2.0).clamp_(-1.0, 1.0).masked_fill_(x > 1.0, 0.25)
    return z.tanh_() * 2.0 + (y * 3.0).zero_() + torch.zeros_like(y).fill_(0.5) * y


@pytest.mark.parametrize(
    "change",
    [_sum, _twice, _read_before, _view_after, _of_a_view, _activation, _bounds_and_masks],
)
def test_sums_and_products_in_place_train_alike(change):
    torch.manual_seed(0)
    model = Model(change).double()
    batch = {"x": torch.randn(BATCH, 4, dtype=torch.float64)}
    graph = capture(model, batch).at_batch(BATCH)
    truth = one_device(model, lambda: model(batch["x"].clone()))
    assert_same(sharded(emit_choices(replicated(graph, 2, dp=2), "m"), model, batch), truth)


def _input(model, y, x):
    x += y
    return x


def _buffer(model, y, x):
    model.offset.add_(1.0)
    return y + model.offset


def _earlier_view(model, y, x):
    column = y[:, :1]
    y += x
    return y + column


def _base(model, y, x):
    y[:, :2].add_(1.0)
    return y


def _no_grad(model, y, x):
    with torch.no_grad():
        y += 1.0
    return y


def _cast(model, y, x):
    low = y.half()
    low += x
    return low.float()


@pytest.mark.parametrize("change", [_input, _buffer, _earlier_view, _base, _no_grad, _cast])
def test_what_shows_elsewhere_is_refused(change):
    with pytest.raises(UnsupportedModelError):
        capture(Model(change), (torch.randn(BATCH, 4),))


class Layer(nn.Module):
    """``own`` writes over a value of its own, else over what it is given."""

    def __init__(self, own: bool):
        super().__init__()
        self.linear, self.own = nn.Linear(4, 4), own

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x.tanh())
        if self.own:
            y += x
            return y
        x += y
        return x


class Stack(nn.Module):
    def __init__(self, own: bool):
        super().__init__()
        self.layers = nn.ModuleList(Layer(own) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        x = before = x * 2.0
        for layer in self.layers:
            given, x = x, layer(x)
            before = before + given
        return (x * before).mean()


@pytest.mark.parametrize("own", [True, False])
def test_repeated_blocks_give_the_whole_trace(own):
    """A block that writes over what it is given changes what its caller reads afterwards."""
    torch.manual_seed(0)
    model = Stack(own).double()
    batch = {"x": torch.randn(BATCH, 4, dtype=torch.float64)}
    graph = capture(model, batch)
    assert graph == capture(model, batch, fold=False)
    emitted = emit_choices(replicated(graph.at_batch(BATCH), 1), "m")
    assert_same(sharded(emitted, model, batch), one_device(model, lambda: model(batch["x"])))
