"""How the microbatches of a step pass through the stages of this rank.

``OneStage`` is the whole model on every rank, one microbatch after another. ``pipeline.Pipeline``
has the same face. Both return the sum of this rank's terms of the loss, in at least float32 so that
terms add up well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from autoplan.runtime.gradients import GradientSum
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
        """Adds the terms of the gradients of the scaled loss to ``.grad``; the loss is as it is."""
        ...

    def evaluate(self, microbatches: Sequence[Microbatch], counts: Sequence[Inputs]) -> Tensor:
        """Without gradients."""
        ...


class OneStage:
    """The whole model, forward and backward, microbatch by microbatch."""

    def __init__(self, stage: LocalStage, gradient_sum: GradientSum) -> None:
        self._stage = stage
        self._gradient_sum = gradient_sum

    def train(
        self, microbatches: Sequence[Microbatch], counts: Sequence[Inputs], scale: Scale
    ) -> Tensor:
        terms = []
        for index, microbatch in enumerate(microbatches):
            is_last = index == len(microbatches) - 1
            term = self.term(microbatch, counts, is_last=is_last)
            if is_last:
                self._gradient_sum.begin_last()
            scale(term).backward()
            terms.append(term)
        return summed(terms)

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
