"""BatchNorm as one operator: ``autoplan::batch_norm``.

A module that takes statistics of its batch changes its buffers in its forward, and what it changes
them to follows from the whole batch. As one operator without effects it is traced like any other;
what runs in its place (``runtime.batch_norm``) takes the statistics over all ranks that share the
batch, or of its own rows where they are local, and updates the buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from autoplan.job import BatchNormMode
from autoplan.trace.refusals import Refuse, refuse_at_once, refused_here
from autoplan.trace.torch_private import BatchNorm, checkpoints_counted, has_side_effect

_LIBRARY = torch.library.Library("autoplan", "FRAGMENT")
_LIBRARY.define(
    "batch_norm(Tensor x, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, "
    "Tensor? tracked, bool training, float? momentum, float eps, bool local=False) -> Tensor"
)


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    tracked: Tensor | None,
    training: bool,
    momentum: float | None,
    eps: float,
    local: bool = False,
) -> Tensor:
    """``x`` normalised by channel (dim 1); no buffer is changed.

    Args:
        training: whether by the statistics of ``x``; else by the running ones.
        tracked: how often they were updated; with ``momentum`` they are what ``_BatchNorm`` has.
        local: whether a part of the batch is normalised by itself. On all of it that is the same.
    """
    if training:
        return F.batch_norm(x, None, None, weight, bias, True, 0.0, eps)
    return F.batch_norm(x, running_mean, running_var, weight, bias, False, 0.0, eps)


_LIBRARY.impl("batch_norm", batch_norm, "CompositeImplicitAutograd")
BATCH_NORM = torch.ops.autoplan.batch_norm.default
has_side_effect(BATCH_NORM)  # so that one whose result nobody reads is seen


@contextmanager
def whole_batch_norms(
    mode: BatchNormMode = "sync", refuse: Refuse = refuse_at_once
) -> Iterator[None]:
    """Runs modules of the BatchNorm family as one operator each.

    One inside ``torch.utils.checkpoint``, whose forward runs twice a step, is refused.
    """
    local = (True,) if mode == "local" else ()

    def forward(self: BatchNorm, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        mean, var = self.running_mean, self.running_var
        training = self.training or mean is None or var is None
        if checkpoints and training and mean is not None:
            what = f"{type(self).__name__} inside torch.utils.checkpoint updates its running"
            what = f"{what} statistics twice a step on one device"
            cure = "take it out of the checkpoint, and leave to autoplan what runs again"
            refuse(refused_here(what, cure, "BatchNorm"))
        return BATCH_NORM(
            input, self.weight, self.bias, mean, var, self.num_batches_tracked,
            training, self.momentum, self.eps, *local,
        )  # fmt: skip

    with checkpoints_counted() as checkpoints, mock.patch.object(BatchNorm, "forward", forward):
        yield
