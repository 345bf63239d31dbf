"""What would run on one rank and not on another is refused, where it is traced or when ranks meet.

A rank that skips a module sends one message less than the others, who wait for it for ever.
"""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import autoplan
from autoplan.errors import UnsupportedModelError
from autoplan.trace.capture import capture
from tests.distributed.harness import run_outcomes

X = torch.randn(4, 8)


class Skipping(nn.Module):
    """Two layers, the second of which ``skips`` may leave out."""

    def __init__(self, skips) -> None:
        super().__init__()
        self.first, self.second, self.skips = nn.Linear(8, 8), nn.Linear(8, 8), skips

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if not self.skips(x):
            x = self.second(x)
        return x.square().sum()


BY_DATA = {
    "a value": lambda x: x.sum() > 0,
    "no rows of its own": lambda x: not len(x[x[:, 0] > 0]),
    "torch's dice": lambda x: torch.rand(()) < 0.5,
}
BY_CHANCE = {
    "Python's random module": lambda x: random.random() < 0.5,
    "numpy.random": lambda x: np.random.random() < 0.5,
}


@pytest.mark.parametrize("name", BY_DATA)
def test_a_module_that_data_skips_is_refused_with_the_line(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"test_ranks_that_differ\.py:\d+") as caught:
        capture(Skipping(BY_DATA[name]), (X,))
    assert re.search("branches on the value|size", str(caught.value))


@pytest.mark.parametrize("name", BY_CHANCE)
def test_a_module_that_chance_skips_is_refused_by_the_name_of_the_dice(name: str) -> None:
    states = random.getstate(), np.random.get_state()[1].tolist()
    with pytest.raises(UnsupportedModelError, match=f"draws from {name}"):
        capture(Skipping(BY_CHANCE[name]), (X,))
    assert states == (random.getstate(), np.random.get_state()[1].tolist())


def _one_rank_skips(rank: int) -> None:
    model = Skipping(lambda x: dist.get_rank() == 1)
    pm = autoplan.compile(model, (X,), global_batch=4, precision="fp32")
    pm.train_step((X[:2],))


def test_a_rank_that_skips_a_module_is_told_before_it_trains() -> None:
    first, second = run_outcomes(_one_rank_skips, 2, timeout_s=10)
    assert "the plan was made for another model" in (second.error or "")
    assert not first.ok
