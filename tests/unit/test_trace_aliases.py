"""Operators under other names, and those that hide the samples, are split like any."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoplan.codegen.pipeline import emit_choices
from autoplan.sharding.batch import batch_layout
from autoplan.sharding.rules import opaque_operators
from autoplan.trace.capture import capture
from tests.parity.choose import replicated
from tests.parity.simulate import assert_same, one_device, sharded

BATCH = 4


def _other_names(x: Tensor) -> Tensor:
    gate = torch.special.expit(torch.subtract(x, 0.5))
    both = torch.concat([torch.multiply(x, gate), torch.true_divide(x, 3)], -1)
    return both.unsqueeze(-1).swapdims(1, 2).moveaxis(1, 2)


def _no_dims(x: Tensor) -> Tensor:
    return x[:, :1].squeeze()


def _last_rows(x: Tensor) -> Tensor:
    return x.view(-1, 2, 2)[torch.arange(x.shape[0]), -1]


def _rows(x: Tensor) -> Tensor:
    """By numbers from either end."""
    picked = (x.detach()[:, 0] > 0).long() - 1
    return x.view(-1, 2, 2)[torch.arange(x.shape[0], device=x.device), picked]


class Model(nn.Module):
    def __init__(self, change) -> None:
        super().__init__()
        self.linear, self.change = nn.Linear(4, 4), change

    def forward(self, x: Tensor) -> Tensor:
        y = self.change(self.linear(x))
        return F.mse_loss(y, torch.full_like(y, 0.5))


@pytest.mark.parametrize("change", [_other_names, _no_dims, _last_rows, _rows])
def test_samples_are_split(change):
    torch.manual_seed(0)
    model = Model(change).double()
    batch = {"x": torch.randn(BATCH, 4, dtype=torch.float64)}
    graph = capture(model, batch).at_batch(BATCH)
    assert not opaque_operators(graph)
    assert not batch_layout(graph).mixing
    emitted = emit_choices(replicated(graph, 1, dp=2, num_microbatches=2), "m")
    assert_same(sharded(emitted, model, batch), one_device(model, lambda: model(**batch)))
