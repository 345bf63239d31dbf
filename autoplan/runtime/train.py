"""One training step: counts first, then every microbatch forward and backward, then the sums.

The global loss is a sum of terms, one per data-parallel rank and microbatch, whose denominators
(``counts``: tokens that are not ignored) must be those of the whole global batch. They follow from
the inputs alone, so their sum over microbatches and ranks begins before the first forward, which
goes on until it reads them.

Dropouts draw anew for every step that has a backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor

from autoplan.errors import PlanError
from autoplan.runtime.collectives import arrived
from autoplan.runtime.engines import Engine, Microbatch, OneStage, Scale, unscaled
from autoplan.runtime.gradients import GradientSum
from autoplan.runtime.mesh import RankMesh
from autoplan.runtime.random import RandomState
from autoplan.runtime.running_statistics import RunningStatistics
from autoplan.runtime.stages import Inputs, LocalStage
from autoplan.runtime.torch_private import queue_callback


class Trainer:
    """Runs the emitted program on microbatches; all losses are of the global batch.

    A step that fails midway leaves gradients that are neither summed nor gone, in places that only
    PyTorch knows; every later call is then refused.

    Attributes:
        drops: whether dropouts drop; not in evaluation.
    """

    def __init__(
        self,
        stages: Sequence[LocalStage],
        engine: Engine,
        gradient_sum: GradientSum,
        mesh: RankMesh,
        random: RandomState,
        statistics: RunningStatistics,
    ) -> None:
        self.drops = True
        self._random = random
        self._stages = stages
        self._engine = engine
        self._gradient_sum = gradient_sum
        self._mesh = mesh
        self._statistics = statistics
        self._is_running = False

    def step(self, microbatches: Sequence[Inputs], scale: Scale = unscaled) -> Tensor:
        """Adds the gradients of the scaled global loss to ``.grad``; returns the loss, detached."""
        self._begin()
        counts = self._counts(microbatches)
        self._gradient_sum.open()
        total = self._engine.train(self._drawing(microbatches), counts, scale)
        self._gradient_sum.close()
        self._random.advance()
        self._end()
        (total,) = arrived([total])
        return self._mesh.sum_over_pp(total)

    def loss(self, inputs: Inputs) -> Tensor:
        """The global loss of one microbatch, whose ``backward()`` gives what ``step`` does."""
        assert isinstance(self._engine, OneStage)
        self._begin()
        counts = self._counts([inputs])
        term = self._engine.term(self._drawing([inputs])[0], counts, is_last=True)
        self._random.advance()
        self._end()
        if self._mesh.dp == 1:
            return term
        return _GlobalLoss.apply(term, self._gradient_sum, self._mesh)

    @torch.no_grad()
    def evaluate(self, microbatches: Sequence[Inputs]) -> Tensor:
        """The global loss, without gradients."""
        with self.forwards():
            counts = self._counts(microbatches)
            total = self._engine.evaluate(self._drawing(microbatches), counts)
        self._end()
        return self._mesh.sum_over_samples(total)

    @contextmanager
    def forwards(self) -> Iterator[None]:
        """Brackets forwards that no backward follows, which may fail: no gradients are lost."""
        self._begin()
        try:
            yield
        finally:
            for stage in self._stages:
                stage.data_parallel.free_gathered()
            self._is_running = False

    def _begin(self) -> None:
        if self._is_running or self._gradient_sum.is_open:
            raise RuntimeError(
                "an earlier step failed midway, and its gradients are lost: build the module anew "
                "and load a checkpoint"
            )
        self._is_running = True
        for stage in self._stages:
            stage.data_parallel.begin_step()

    def _end(self) -> None:
        if self.drops:
            self._statistics.average()
        self._is_running = False

    def _drawing(self, microbatches: Sequence[Inputs]) -> list[Microbatch]:
        """The microbatches with what their dropouts draw by."""
        draws = self._random.draws(self._mesh, len(microbatches))
        return [
            Microbatch(inputs, own if self.drops else None)
            for inputs, own in zip(microbatches, draws, strict=True)
        ]

    def _counts(self, microbatches: Sequence[Inputs]) -> list[Inputs]:
        """The counts of every stage of this rank, whose sums are under way."""
        with torch.no_grad():
            return [self._count(stage, microbatches) for stage in self._stages]

    def _count(self, stage: LocalStage, microbatches: Sequence[Inputs]) -> Inputs:
        terms = [stage.count(inputs) for inputs in microbatches]
        summed = [reduce(torch.add, values) for values in zip(*terms, strict=True)]
        return tuple(self._mesh.begin_sum_over_dp(value) for value in summed)


class _GlobalLoss(torch.autograd.Function):
    """The sum of the ranks' terms; its backward brackets the backward of the whole model."""

    @staticmethod
    def forward(ctx: Any, term: Tensor, gradient_sum: GradientSum, mesh: RankMesh) -> Tensor:
        ctx.sums = gradient_sum
        return mesh.sum_over_dp(term.clone())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.sums.is_open:
            ctx.sums.open()
            ctx.sums.begin_last()
            queue_callback(partial(_close, ctx.sums))
        return grad, None, None


def _close(sums: GradientSum) -> None:
    """Ends a backward of the whole model."""
    has_terms = sums.has_terms
    sums.close()
    if not has_terms:
        raise PlanError(
            "the backward left no gradient in any parameter (torch.autograd.grad?), so that none "
            "was summed over the ranks: use loss.backward() and read .grad"
        )
