"""How the microbatches of a step pass through the stages of this rank.

``OneStage`` is the whole model on every rank, one microbatch after another. ``pipeline.Pipeline``
has the same face. Both add up this rank's terms of the loss in at least float32. Where they are
known ahead of a backward, their sum over the ranks goes on beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from autoplan.runtime.gradients import GradientSum
from autoplan.runtime.mesh import RankMesh
from autoplan.runtime.random import Draws
from autoplan.runtime.stages import Inputs, LocalStage

Scale = Callable[[Tensor], Tensor]
"""What the loss goes through before its backward: a factor against underflow, or nothing."""


@dataclass(frozen=True, slots=True)
class Microbatch:
    """All inputs of one microbatch, and what its dropouts draw by; None where they drop nothing."""

    inputs: Inputs
    draws: Draws | None


class Engine(Protocol):
    """Runs the microbatches of one step; ``counts`` has those of every stage of this rank."""

    def train(
        self, microbatches: Sequence[Microbatch], counts: Sequence[Inputs], scale: Scale
    ) -> Tensor:
        """Adds the terms of the gradients of the scaled loss to ``.grad``.

        Returns:
            The loss as it is, summed over the data-parallel ranks: maybe still under way.
        """
        ...

    def evaluate(self, microbatches: Sequence[Microbatch], counts: Sequence[Inputs]) -> Tensor:
        """Without gradients."""
        ...


class OneStage:
    """The whole model, forward and backward, microbatch by microbatch."""

    def __init__(self, stage: LocalStage, gradient_sum: GradientSum, mesh: RankMesh) -> None:
        self._stage = stage
        self._gradient_sum = gradient_sum
        self._mesh = mesh

    def train(
        self, microbatches: Sequence[Microbatch], counts: Sequence[Inputs], scale: Scale
    ) -> Tensor:
        *others, last = microbatches
        terms = []
        for microbatch in others:
            terms.append(self.term(microbatch, counts, is_last=False))
            scale(terms[-1]).backward()
        terms.append(self.term(last, counts, is_last=True))
        total = self._mesh.begin_sum_over_dp(summed(terms))
        self._gradient_sum.begin_last()
        scale(terms[-1]).backward()
        return total

    def evaluate(self, microbatches: Sequence[Microbatch], counts: Sequence[Inputs]) -> Tensor:
        terms = [self._forward(microbatch, counts) for microbatch in microbatches]
        self._stage.data_parallel.free_gathered()
        return summed(terms)

    def term(self, microbatch: Microbatch, counts: Sequence[Inputs], *, is_last: bool) -> Tensor:
        """The term of one microbatch, ready for its backward."""
        self._stage.data_parallel.begin_microbatch(is_last=is_last)
        return self._forward(microbatch, counts)

    def _forward(self, microbatch: Microbatch, counts: Sequence[Inputs]) -> Tensor:
        return self._stage.forward((), microbatch.inputs, counts[0], microbatch.draws)


def unscaled(loss: Tensor) -> Tensor:
    """The loss as it is."""
    return loss


def summed(terms: Sequence[Tensor]) -> Tensor:
    """The sum of terms of the loss, outside autograd."""
    return torch.stack([term.detach().to(summed_dtype(term.dtype)) for term in terms]).sum()


def summed_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which terms of the loss are summed."""
    return dtype if dtype == torch.float64 else torch.float32
