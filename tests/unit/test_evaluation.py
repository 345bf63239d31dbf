"""Switching between training and evaluation computes what the model does in each mode."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import autoplan
from autoplan.errors import UnsupportedModelError
from tests.parity import dropping, normed


def case(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    if name == "norm":
        return normed.model_of("mlp"), normed.batch_of(4)
    return dropping.model_of(name), dropping.batch_of(name, 4)


def loss_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> float:
    output = model(**batch)
    return (output if isinstance(output, torch.Tensor) else output.loss).item()


@pytest.mark.parametrize("name", ["gpt", "bert", "mlp", "norm"])
def test_both_modes(name):
    model, batch = case(name)
    pm = autoplan.compile(copy.deepcopy(model), batch, global_batch=4, precision="fp32", seed=3)
    assert model.training
    with torch.no_grad():
        expected = loss_of(copy.deepcopy(model).eval(), batch)
        assert pm.eval()(**batch).item() == pytest.approx(expected, rel=1e-9)
        with autoplan.reference_dropout(seed=3):
            expected = loss_of(model, batch)
        assert pm.train()(**batch).item() == pytest.approx(expected, rel=1e-9)
    with autoplan.reference_dropout(seed=3):
        expected = loss_of(model, batch)
    assert pm.train_step(batch).item() == pytest.approx(expected, rel=1e-9)
    with torch.no_grad():  # by the running statistics, which were updated twice
        expected = loss_of(model.eval(), batch)
        assert pm.eval()(**batch).item() == pytest.approx(expected, rel=1e-9)


class Always(nn.Module):
    """Drops in any mode, or does otherwise by its mode."""

    def __init__(self, doubles: bool) -> None:
        super().__init__()
        self.linear, self.drop, self.doubles = nn.Linear(4, 4), nn.Dropout(0.5), doubles

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.drop(self.linear(x))
        if self.doubles:
            return (y if self.training else 2 * y).mean()
        return F.dropout(y, 0.5, training=True).mean()


@pytest.mark.parametrize("doubles", [True, False])
def test_what_else_follows_the_mode_is_refused(doubles):
    model, batch = Always(doubles), {"x": torch.randn(4, 4)}
    pm = autoplan.compile(model, batch, global_batch=4, precision="fp32")
    with pytest.raises(UnsupportedModelError, match="trace the model in eval mode"):
        pm.eval()
    pm.train()
