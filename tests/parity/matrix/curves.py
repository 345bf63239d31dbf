"""The losses of a hundred steps of a GPT with dropout, in float32, under very different plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from autoplan.runtime.parallelize import parallelize
from autoplan.runtime.reference_dropout import reference_dropout
from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph
from tests.distributed.harness import run_ranks
from tests.parity.dropping import DroppingGPT
from tests.parity.matrix.families import ROWS, Batch
from tests.parity.matrix.ways import Way, plan_for
from tests.parity.models import initialise, language_batch

STEPS, LAYERS, BATCHES, SEED, RANKS = 100, 4, 8, 11, 4
LEARNING_RATE, EPSILON = 3e-3, 1e-4
RTOL = 1e-4

CURVES = {
    "dp4, ZeRO 3": Way(dp=4, zero=3),
    "tp4": Way(tp=4),
    "dp2 x tp2, ZeRO 2": Way(dp=2, tp=2, zero=2),
    "pp4, 1F1B": Way(pp=4, stages=4, schedule="1f1b", microbatches=4),
    "pp2 x tp2, interleaved, operators again": Way(
        pp=2, tp=2, stages=4, schedule="interleaved_1f1b", microbatches=4, operators_again=True
    ),
    "dp4 in 2 replicas, ZeRO 1, blocks again": Way(dp=4, zero=1, replicas=2, blocks_again=True),
}


@dataclass(frozen=True)
class Curve:
    """The losses under a plan beside those of one device, by step."""

    losses: Sequence[float]
    alone: Sequence[float]

    @property
    def furthest(self) -> float:
        """Largest relative difference of all steps."""
        return max(abs(a - b) / abs(b) for a, b in zip(self.losses, self.alone, strict=True))


def run_curves() -> dict[str, Curve]:
    """Trains under every plan, and alone."""
    alone = _train_alone()
    ranks = run_ranks(_train_all, RANKS, deadline_s=1800)
    for rank in ranks[1:]:
        assert rank == ranks[0], "ranks are told different losses"
    return {name: Curve(losses, alone) for name, losses in ranks[0].items()}


def _train_all(rank: int) -> dict[str, list[float]]:
    return {name: _train(way) for name, way in CURVES.items()}


def _train(way: Way) -> list[float]:
    pm = parallelize(_model(), _graph(), plan_for(_graph(), way), seed=SEED)
    optimizer = _optimizer(pm.parameters())
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        losses.append(pm.train_step(pm.shard_batch(_batches()[step % BATCHES])).item())
        pm.clip_grad_norm_(1.0)
        optimizer.step()
    return losses


def _train_alone() -> list[float]:
    model = _model()
    optimizer = _optimizer(model.parameters())
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        with reference_dropout(seed=SEED, step=step):
            loss: Tensor = model(**_batches()[step % BATCHES])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def _optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE, eps=EPSILON)


def _model() -> nn.Module:
    return initialise(DroppingGPT(layers=LAYERS), torch.float32).train()


@cache
def _batches() -> list[Batch]:
    torch.manual_seed(1)
    return [language_batch(ROWS) for _ in range(BATCHES)]


@cache
def _graph() -> OpGraph:
    return capture(_model(), _batches()[0])
