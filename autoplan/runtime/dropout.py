"""Dropout whose mask is that of one device, whatever piece of the tensor a rank holds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from autoplan.runtime.collectives import AxisGroup, rank_tensor
from autoplan.runtime.dropout_mask import Split, keep_mask
from autoplan.runtime.random import Draws


def invariant_dropout(
    x: Tensor,
    p: float,
    train: bool = True,
    *,
    draws: Draws | None,
    number: int,
    axis: AxisGroup,
    batch: Sequence[int] | None = None,
    shard: Sequence[int] | None = None,
) -> Tensor:
    """``aten.dropout`` of this rank's piece.

    Args:
        draws: of this microbatch; None in evaluation, where nothing is dropped.
        number: of this dropout among those of the model's forward.
        batch, shard: the dims, with their parts, that the pieces of the batch and the ranks of
            ``axis`` split; None for a tensor that is the same on all of them.
    """
    if draws is None or x.numel() == 0:
        return x
    if p >= 1:
        return x * 0
    splits: list[list[Split]] = [[] for _ in range(x.dim())]
    if batch is not None:
        splits[batch[0]].append((batch[1], draws.pieces, draws.piece))
    if shard is not None and axis.size > 1:
        splits[shard[0]].append((shard[1], axis.size, rank_tensor(axis, x.device)))
    return dropped(x, keep_mask(x.shape, splits, draws.key(number), p, x.device), p)


def dropped(x: Tensor, kept: Tensor, p: float) -> Tensor:
    """The elements that are kept, scaled so that their expectation stays; autograd keeps the mask.

    The operator is the backward of PyTorch's own dropout, which is the same product.
    """
    return torch.ops.aten.native_dropout_backward(x, kept, 1 / (1 - p))
