"""A model on one device whose BatchNorms take the statistics that a plan's ranks take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from autoplan.errors import PlanError
from autoplan.plan import Plan


@contextmanager
def reference_batch_norm(plan: Plan) -> Iterator[None]:
    """Inside, an eager forward of the global batch normalises it in the pieces of the plan.

    Where the plan has statistics of the whole batch, modules are as they are. Where they are local,
    the rows of each data-parallel rank and microbatch are normalised by themselves, and each
    microbatch moves the running statistics by the mean of the ranks' ones.
    """
    ranks, microbatches = plan.mesh.dp, plan.num_microbatches
    whole = _BatchNorm.forward

    def forward(self: _BatchNorm, input: Tensor) -> Tensor:
        if not self.training and self.running_mean is not None:
            return whole(self, input)
        if len(input) % (ranks * microbatches):
            raise PlanError(
                f"a BatchNorm gets {len(input)} rows, which are no parts of {ranks} ranks and "
                f"{microbatches} microbatches: verify with batch_norm='sync'"
            )
        pieces = input.chunk(ranks * microbatches)
        if self.running_mean is not None:
            for index in range(microbatches):
                _move(self, pieces[index::microbatches])
        given = None, None, self.weight, self.bias, True, 0.0, self.eps
        return torch.cat([F.batch_norm(piece, *given) for piece in pieces])

    if plan.job.batch_norm == "sync" or ranks * microbatches == 1:
        yield
        return
    with mock.patch.object(_BatchNorm, "forward", forward):
        yield


@torch.no_grad()
def _move(norm: _BatchNorm, pieces: tuple[Tensor, ...]) -> None:
    """Moves the running statistics by those of one microbatch of each rank."""
    mean, var, tracked = norm.running_mean, norm.running_var, norm.num_batches_tracked
    assert mean is not None
    assert var is not None
    assert tracked is not None
    found = [torch.var_mean(piece, [0, *range(2, piece.dim())]) for piece in pieces]
    tracked.add_(1)
    share = 1 / float(tracked) if norm.momentum is None else norm.momentum
    var.lerp_(torch.stack([each for each, _ in found]).mean(0).to(var.dtype), share)
    mean.lerp_(torch.stack([each for _, each in found]).mean(0).to(mean.dtype), share)
