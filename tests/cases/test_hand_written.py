"""Models as people write them by hand equal one device under random plans, and split the batch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from autoplan.sharding.batch import batch_layout
from autoplan.sharding.rules import opaque_operators
from autoplan.trace.capture import capture
from tests.parity.choose import random_program
from tests.parity.models import initialise
from tests.parity.simulate import assert_same, one_device, sharded

BATCH = 4


class Recurrent(nn.Module):
    """A cell in a loop; its first state is made from the size of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTMCell(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[0], 8)
        weight = x.new_ones(x.shape[1])
        scale = torch.arange(8, device=x.device).type_as(x)
        states = []
        for step in x.unbind(1):
            h, c = self.cell(step, (h, c))
            states.append(h)
        return F.mse_loss(self.out(torch.stack(states, 1)) * weight[:, None] * scale, y)


class Styled(nn.Module):
    """Convolutions by direction and length, and channels normalised within a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.first = weight_norm(nn.Conv1d(8, 8, 3, padding=1))
        self.second = weight_norm(nn.Conv1d(8, 8, 1), dim=1)
        self.norms = nn.ModuleList(nn.InstanceNorm1d(8, affine=affine) for affine in (True, False))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        x = self.norms[0](self.first(x)).relu()
        return F.mse_loss(self.norms[1](self.second(x)).transpose(1, 2), y)


@pytest.mark.parametrize("build", [Recurrent, Styled])
def test_models_by_hand_equal_one_device(build):
    model = initialise(build(), torch.float64)
    batch = {name: torch.randn(BATCH, 4, 8, dtype=torch.float64) for name in "xy"}
    graph = capture(model, batch).at_batch(BATCH)
    assert not opaque_operators(graph)
    assert not batch_layout(graph).mixing
    truth = one_device(model, lambda: model(**batch))
    for tp, dp, microbatches in ((2, 1, 1), (4, 2, 2)):
        emitted = random_program(graph, tp, tp, dp=dp, num_microbatches=microbatches)
        assert_same(sharded(emitted, model, batch), truth)
