"""Alignment losses are traced as losses of samples, which are those of PyTorch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoplan.codegen.pipeline import emit_choices
from autoplan.trace.capture import capture
from tests.parity.choose import replicated
from tests.parity.simulate import assert_same, one_device, sharded

BATCH = 4


class Recogniser(nn.Module):
    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.linear, self.loss = nn.Linear(8, 5), nn.CTCLoss(reduction=reduction)

    def forward(self, x: Tensor, targets: Tensor, lengths: Tensor) -> Tensor:
        scores = self.linear(x).log_softmax(-1).transpose(0, 1)
        steps = torch.full((x.shape[0],), x.shape[1])
        loss = self.loss(scores, targets, steps, lengths)
        return loss if not loss.dim() else F.softplus(loss).sum()


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_samples_are_aligned_apart(reduction):
    torch.manual_seed(0)
    model = Recogniser(reduction).double()
    batch = {
        "x": torch.randn(BATCH, 12, 8, dtype=torch.float64),
        "targets": torch.randint(1, 5, (BATCH, 3)),
        "lengths": torch.tensor([3, 0, 1, 2]),
    }
    graph = capture(model, batch).at_batch(BATCH)
    emitted = emit_choices(replicated(graph, 1, dp=2, num_microbatches=2), "m")
    assert_same(sharded(emitted, model, batch), one_device(model, lambda: model(**batch)))
