"""Losses over pairs of samples keep the batch in one piece, and equal one device beside that.

Contrastive losses compare every sample with all others: the batch is not split, weights and layers
are. What they count and keep grows with the square of the batch.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoplan.sharding.batch import batch_layout
from autoplan.trace.capture import capture
from autoplan.trace.stack import stack_of
from tests.parity.choose import random_program
from tests.parity.models import initialise
from tests.parity.simulate import assert_same, one_device, sharded
from tests.parity.stages import stages_at

BATCH, WIDTH = 4, 8


def clip(u: Tensor, v: Tensor) -> Tensor:
    """Of images and texts, both ways."""
    scores = F.normalize(u, dim=-1) @ F.normalize(v, dim=-1).t() / 0.5
    own = torch.arange(u.shape[0], device=u.device)
    return (F.cross_entropy(scores, own) + F.cross_entropy(scores.t(), own)) / 2


def simclr(u: Tensor, v: Tensor) -> Tensor:
    """Of two views of each sample among both of all."""
    both = F.normalize(torch.cat([u, v]), dim=-1)
    count = both.shape[0]
    scores = (both @ both.t()).masked_fill(torch.eye(count, dtype=torch.bool), float("-inf"))
    return F.cross_entropy(scores / 0.5, (torch.arange(count) + u.shape[0]) % count)


def negatives(u: Tensor, v: Tensor) -> Tensor:
    """Mean over the pairs of different samples."""
    scores, count = (u @ v.t()).sigmoid(), u.shape[0]
    return (scores.sum() - scores.diagonal().sum()) / (count * (count - 1)) + scores.mean()


def covariance(u: Tensor, v: Tensor) -> Tensor:
    """Of features over the batch, by all samples but one."""
    centred = u - u.mean(0)
    return F.mse_loss(u, v) + (centred.t() @ centred / (u.shape[0] - 1)).square().sum()


LOSSES = {loss.__name__: loss for loss in (clip, simclr, negatives, covariance)}


class Towers(nn.Module):
    """Two encoders; the loss is of what they make."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.first, self.second = (
            nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH)) for _ in range(2)
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return LOSSES[self.name](self.first(x), self.second(y))


@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_pairs_equal_one_device(name):
    model = initialise(Towers(name), torch.float64)
    batch = {key: torch.randn(BATCH, WIDTH, dtype=torch.float64) for key in "xy"}
    graph = capture(model, batch).at_batch(BATCH)
    assert batch_layout(graph).mixing
    truth = one_device(model, lambda: model(**batch))
    middle = len(stack_of(graph).items) // 2
    for stages in ((), stages_at(graph, [0, middle])):
        emitted = random_program(graph, 2, 0, stages=stages)
        assert_same(sharded(emitted, model, batch), truth)


def test_work_and_memory_of_pairs_grow_with_the_square_of_the_batch():
    model = Towers("clip").double()
    example = {key: torch.randn(BATCH, WIDTH, dtype=torch.float64) for key in "xy"}
    for batch in (3, 50):
        calls = {n.target: n for n in capture(model, example).at_batch(batch).of_kind("call")}
        product = calls["aten.matmul.default"]
        assert product.flops == 2 * batch * WIDTH * batch
        kept = [item.nbytes for item in calls["aten.cross_entropy_loss.default"].saved]
        assert max(kept) == 8 * batch * batch
