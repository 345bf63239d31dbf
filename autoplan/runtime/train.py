"""One training step: counts first, then every microbatch forward and backward, then the sums.

The global loss is a sum of terms, one per data-parallel rank and microbatch, whose denominators
(``counts``: tokens that are not ignored) must be those of the whole global batch. They follow from
the inputs alone, so they are summed over microbatches and ranks before the first forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from autoplan.runtime.data_parallel import DataParallel
from autoplan.runtime.mesh import RankMesh
from autoplan.runtime.torch_private import queue_callback

Inputs = tuple[Tensor, ...]


class Trainer:
    """Runs the emitted program on microbatches; all losses are of the global batch.

    A step that fails midway leaves gradients that are neither summed nor gone, in places that only
    PyTorch knows; every later call is then refused.
    """

    def __init__(self, program: nn.Module, data_parallel: DataParallel, mesh: RankMesh) -> None:
        self._program: Any = program
        self._data_parallel = data_parallel
        self._mesh = mesh
        self._is_running = False

    def step(self, microbatches: Sequence[Inputs]) -> Tensor:
        """Adds the gradients of the global loss to ``.grad`` and returns the loss, detached."""
        self._begin()
        counts = self._counts(microbatches)
        self._data_parallel.gradient_sum.open()
        total = torch.zeros((), device=self._mesh.device)
        for index, inputs in enumerate(microbatches):
            self._data_parallel.begin_microbatch(is_last=index == len(microbatches) - 1)
            term = self._forward(inputs, counts)
            term.backward()
            total = total + _widened(term)
        self._data_parallel.gradient_sum.close()
        self._is_running = False
        return self._mesh.sum_over_dp(total)

    def loss(self, inputs: Inputs) -> Tensor:
        """The global loss of one microbatch, whose ``backward()`` gives what ``step`` does."""
        self._begin()
        counts = self._counts([inputs])
        self._data_parallel.begin_microbatch(is_last=True)
        term = self._forward(inputs, counts)
        self._is_running = False
        if self._mesh.dp == 1:
            return term
        return _GlobalLoss.apply(term, self._data_parallel, self._mesh)

    @torch.no_grad()
    def evaluate(self, microbatches: Sequence[Inputs]) -> Tensor:
        """The global loss, without gradients."""
        self._begin()
        counts = self._counts(microbatches)
        total = torch.zeros((), device=self._mesh.device)
        for inputs in microbatches:
            total = total + _widened(self._forward(inputs, counts))
        self._data_parallel.free_gathered()
        self._is_running = False
        return self._mesh.sum_over_dp(total)

    def _begin(self) -> None:
        if self._is_running or self._data_parallel.gradient_sum.is_open:
            raise RuntimeError(
                "an earlier step failed midway, and its gradients are lost: build the module anew "
                "and load a checkpoint"
            )
        self._is_running = True

    def _forward(self, inputs: Inputs, counts: Inputs) -> Tensor:
        self._data_parallel.begin_forward()
        return self._program(*inputs, counts=counts)

    def _counts(self, microbatches: Sequence[Inputs]) -> Inputs:
        with torch.no_grad():
            terms = [self._program.count(*inputs) for inputs in microbatches]
            summed = [reduce(torch.add, values).clone() for values in zip(*terms, strict=True)]
            return tuple(self._mesh.sum_over_dp(value) for value in summed)


class _GlobalLoss(torch.autograd.Function):
    """The sum of the ranks' terms; its backward brackets the backward of the whole model."""

    @staticmethod
    def forward(ctx: Any, term: Tensor, data_parallel: DataParallel, mesh: RankMesh) -> Tensor:
        ctx.sums = data_parallel.gradient_sum
        return mesh.sum_over_dp(term.clone())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.sums.is_open:
            ctx.sums.open()
            queue_callback(ctx.sums.close)
        return grad, None, None


def _widened(term: Tensor) -> Tensor:
    """The term outside autograd, in at least float32 so that terms add up well."""
    term = term.detach()
    return term if term.dtype == torch.float64 else term.float()
