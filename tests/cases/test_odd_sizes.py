"""Sizes that ranks do not divide: a vocabulary, heads of keys, rows, biases.

None of it is padded by the user; what does not divide stays whole, or is stored unevenly.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import autoplan
from autoplan.errors import PlanError
from autoplan.trace.capture import capture
from tests.distributed.harness import run_ranks
from tests.parity.choose import random_program
from tests.parity.models import GPT, initialise, language_batch
from tests.parity.simulate import assert_same, one_device, sharded

BATCH = 4
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("vocab", "tied"), [(50257, True), (37, False), pytest.param(50257, False, marks=SLOW)]
)
def test_an_odd_vocabulary_gives_the_loss_of_one_device(vocab: int, tied: bool) -> None:
    """50257 on two ranks of tp, with and without a head of its own."""
    torch.manual_seed(0)
    model = initialise(GPT(vocab=vocab, layers=1, tied=tied), torch.float64)
    batch = language_batch(BATCH, vocab=vocab)
    graph = capture(model, batch).at_batch(BATCH)
    truth = one_device(model, lambda: model(**batch))
    emitted = random_program(graph, 2, 0, num_microbatches=2)
    assert emitted.parameters["tokens.weight"].meta.shape == (vocab, 16)
    assert_same(sharded(emitted, model, batch), truth)


class Grouped(nn.Module):
    """Attention of 4 heads of queries on 2 of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (4, 8)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2, 16)).transpose(1, 2).chunk(2, -1)
        y = nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return self.o(y.transpose(1, 2).flatten(2)).square().sum()


@pytest.mark.parametrize("seed", range(2))
def test_more_ranks_than_heads_of_keys_run_what_one_device_runs(seed: int) -> None:
    model = initialise(Grouped(), torch.float64)
    batch = {"x": torch.randn(BATCH, 8, 16, dtype=torch.float64)}
    graph = capture(model, batch).at_batch(BATCH)
    truth = one_device(model, lambda: model(**batch))
    assert_same(sharded(random_program(graph, 4, seed), model, batch), truth)


def test_more_ranks_than_heads_of_keys_are_told_when_planned() -> None:
    """Where attention cannot be split, by heads or by tokens, its degree is refused and the largest
    that can be is named."""
    job = {"cluster": "cpu-gloo", "gpus_per_node": 4, "global_batch": 4, "precision": "fp32"}
    batch = {"x": torch.randn(2, 5, 16)}
    with pytest.raises(PlanError, match=r"tp=4 cannot split .*tp can be 1, 2"):
        autoplan.plan(Grouped(), batch, **job, pins={"tp": 4})
    assert autoplan.plan(Grouped(), batch, **job).mesh.tp in (1, 2)


class FiveRows(nn.Module):
    """Weights of five rows, whose bias nothing divides."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 5), nn.Linear(5, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).tanh()).square().mean()


def _five_rows(rank: int) -> list[str]:
    """Names of what differs from one device after a step on dp 2 x tp 2 with ZeRO 3."""
    torch.manual_seed(0)
    model, x = FiveRows(), torch.randn(4, 8)
    pm = autoplan.compile(
        model, (x,), global_batch=4, precision="fp32", pins={"dp": 2, "tp": 2, "zero": 3}
    )
    loss = pm.train_step(pm.shard_batch((x,)))
    expected = model(x)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    wanted = {name: p.grad for name, p in model.named_parameters()}
    held = {name: value.grad for name, value in pm.named_parameters()}
    found = {n: g.full_tensor() if isinstance(g, DTensor) else g for n, g in held.items()}
    return [n for n, g in wanted.items() if not torch.allclose(found[n], g, atol=1e-6)]


def test_five_rows_on_four_ranks_lose_none() -> None:
    assert run_ranks(_five_rows, 4) == [[]] * 4
