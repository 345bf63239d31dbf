"""Tensors filled part by part are traced as concatenations where that is what they are."""

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
    """Applies ``join`` to the outputs of two layers, of widths 2 and 3."""

    def __init__(self, join):
        super().__init__()
        self.first, self.second, self.join = nn.Linear(4, 2), nn.Linear(4, 3), join

    def forward(self, x: Tensor) -> Tensor:
        return self.join(self.first(x), self.second(x)).square().mean()


def _two_parts(u, v):
    y = u.new_empty(u.shape[0], 5)
    y[:, :2].copy_(u)
    y[:, 2:].copy_(v)
    return y


def _out_of_order(u, v):
    y = torch.empty(u.shape[0], 5, dtype=u.dtype)
    y[..., 2:].copy_(v)
    y[..., :2].copy_(u)
    return y * 2.0


def _three_parts(u, v):
    y = u.new_empty(u.shape[0], 3, 5)
    for at in range(3):
        y[:, at : at + 1].copy_(torch.cat([u, v * at], -1).unsqueeze(1))
    return y


def _one_number(u, v):
    y = u.new_zeros(u.shape[0], 6)
    y[:, 3:] = v
    y[:, 1:3] = u
    y[:, 0] = torch.tensor(7.0, dtype=u.dtype)
    return y.sin()


def _one_column(u, v):
    y = torch.zeros(u.shape[0], 4, 3, dtype=u.dtype)
    y[:, -1] = v
    y[:, :3] = u.unsqueeze(-1)[:, :1].expand(-1, 3, 3) * 2.0
    return y


def _step_by_step(u, v):
    y, state = torch.zeros_like(v), u[:, 0]
    for at in range(3):
        state = state * 0.5 + v[:, at]
        y[:, at] = state
    return y


@pytest.mark.parametrize(
    "join", [_two_parts, _out_of_order, _three_parts, _one_number, _one_column, _step_by_step]
)
def test_parts_train_alike(join):
    torch.manual_seed(0)
    model = Model(join).double()
    batch = {"x": torch.randn(BATCH, 4, dtype=torch.float64)}
    graph = capture(model, batch).at_batch(BATCH)
    assert "aten.cat.default" in {node.target for node in graph.nodes}
    truth = one_device(model, lambda: model(batch["x"]))
    assert_same(sharded(emit_choices(replicated(graph, 2, dp=2), "m"), model, batch), truth)


def _gap(u, v):
    y = u.new_empty(u.shape[0], 6)
    y[:, :2].copy_(u)
    y[:, 3:].copy_(v)
    return y[:, 3:]


def _overlap(u, v):
    y = u.new_empty(u.shape[0], 4)
    y[:, :2].copy_(u)
    y[:, 1:].copy_(v)
    return y


def _read_between(u, v):
    y = u.new_empty(u.shape[0], 5)
    y[:, :2].copy_(u)
    total = y[:, :2].sum(-1, keepdim=True)
    y[:, 2:].copy_(v * total)
    return y


def _broadcast(u, v):
    y = u.new_empty(u.shape[0], 5)
    y[:, :2].copy_(u)
    y[:, 2:].copy_(u[:, :1])
    return y + v.sum(-1, keepdim=True)


def _other_type(u, v):
    y = u.new_empty(u.shape[0], 5, dtype=torch.float64)
    y[:, :2].copy_(u)
    y[:, 2:].copy_(v)
    return y.to(u.dtype)


def _transposed(u, v):
    y = u.new_empty(5, u.shape[0]).t()
    y[:, :2].copy_(u)
    y[:, 2:].copy_(v)
    return y


@pytest.mark.parametrize(
    "join", [_gap, _overlap, _read_between, _broadcast, _other_type, _transposed]
)
def test_other_writes_are_refused(join):
    with pytest.raises(UnsupportedModelError, match="in-place operator"):
        capture(Model(join), (torch.randn(BATCH, 4),))
