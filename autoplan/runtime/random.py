"""Random numbers that do not depend on the plan.

What a dropout draws follows from the seed, the number of the training step, the number of the
dropout among those of one forward, and the place of an element in the tensor of the whole batch
(``dropout_mask``). Nothing is drawn in sequence, so the ranks of a job, its microbatches in any
order, and blocks that run again in the backward all see what one device would.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from autoplan.runtime.mesh import RankMesh

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True, kw_only=True, slots=True)
class Draws:
    """What a forward draws by.

    Attributes:
        seed: of the training.
        step: number of the training step.
        piece, pieces: which part of the batch this is, of how many equal ones.
    """

    seed: int
    step: int
    piece: int = 0
    pieces: int = 1

    def key(self, number: int) -> int:
        """64 bits for the draw of this number (from 0) among those of the model's forward."""
        return mixed(mixed(mixed(self.seed) + self.step) + number)


class RandomState:
    """The seed of a training and the number of its next step; the same on every rank."""

    def __init__(self, seed: int) -> None:
        self.seed = seed & _MASK
        self.step = 0

    def draws(self, mesh: RankMesh, microbatches: int) -> list[Draws]:
        """Those of this rank's microbatches in the next step."""
        first, pieces = mesh.dp_rank * microbatches, mesh.dp * microbatches
        return [
            Draws(seed=self.seed, step=self.step, piece=first + index, pieces=pieces)
            for index in range(microbatches)
        ]

    def advance(self) -> None:
        self.step += 1

    def document(self) -> dict[str, int]:
        """What a checkpoint keeps of it."""
        return {"seed": self.seed, "step": self.step}

    def restore(self, document: Mapping[str, Any]) -> None:
        self.seed, self.step = document["seed"], document["step"]


def agreed_seed(seed: int | None, mesh: RankMesh) -> int:
    """Rank 0's seed on every rank; by default that of its generator, ``torch.initial_seed()``."""
    own = (torch.initial_seed() if seed is None else seed) & _MASK
    if mesh.world_size == 1:
        return own
    halves = torch.tensor([own >> 32, own & (2**32 - 1)], device=mesh.device)
    dist.broadcast(halves, src=0)
    high, low = halves.tolist()
    return high << 32 | low


def mixed(value: int) -> int:
    """One step of SplitMix64 (Steele, Lea and Flood 2014, figure 16) from any integer."""
    x = (value + _GOLDEN) & _MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & _MASK
    return x ^ x >> 31
