"""A frozen base costs its weights alone: no gradients, no moments, no master copy."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import autoplan

WIDTH, RANK, LAYERS = 64, 4, 3
JOB = {"cluster": "cpu-gloo", "gpus_per_node": 1, "global_batch": 4}


class Corrected(nn.Module):
    """A linear layer and a correction of low rank."""

    def __init__(self, *, frozen: bool) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(not frozen)
        self.down = nn.Linear(WIDTH, RANK, bias=False)
        self.up = nn.Linear(RANK, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.base(x) + self.up(self.down(x)))


class Model(nn.Module):
    def __init__(self, *, frozen: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Corrected(frozen=frozen) for _ in range(LAYERS)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).square().mean()


@pytest.mark.parametrize("frozen", [True, False])
def test_bytes_of_states_are_those_of_what_learns(frozen: bool) -> None:
    """Weights are held in 4 bytes and cast as they are used; what learns has 4 bytes of gradient
    and 8 of Adam's moments beside them (Rajbhandari et al. 2020, section 3.1)."""
    plan = autoplan.plan(Model(frozen=frozen), (torch.zeros(2, WIDTH),), **JOB)
    base, own = LAYERS * WIDTH * WIDTH, LAYERS * 2 * WIDTH * RANK
    learning = own if frozen else own + base
    memory = plan.estimate.stages[0].memory
    assert memory.optimizer_state == 8 * learning
    assert memory.parameters + memory.master_weights == 4 * (base + own)
    assert memory.gradients == 4 * learning


def test_a_frozen_base_trains_to_the_same_weights() -> None:
    torch.manual_seed(0)
    model, x = Model(frozen=True), torch.randn(4, WIDTH)
    pm = autoplan.compile(model, (x,), global_batch=4, precision="fp32")
    loss = pm.train_step((x,))
    expected = model(x)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(dict(pm.named_parameters())[name].grad, parameter.grad)
