"""BatchNorm whose statistics are those of the whole batch, on every rank that has a part of it.

Means and sums of squared deviations of the ranks' parts are put together as in Chan, Golub and
LeVeque (1979), so that no large squares cancel. The backward sums over the same ranks what the
statistics pass on: with x^ = (x - mean) / sigma and N values of a channel (Ioffe and Szegedy 2015)

    dx = weight / sigma (dy - sum(dy) / N - x^ sum(dy x^) / N)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from autoplan.runtime import torch_private as c10d
from autoplan.runtime.collectives import AxisGroup, by_rank, gathered, reduce_over
from autoplan.runtime.random import Draws


def synced_batch_norm(
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
    *,
    draws: Draws | None,
    axis: AxisGroup,
    over: AxisGroup | None = None,
    shard: Sequence[int] | None = None,
) -> Tensor:
    """``autoplan::batch_norm`` of this rank's piece; in training it updates the running statistics.

    They are updated once for each forward, and not when it runs again in the backward.

    Args:
        running_mean, running_var: of all channels.
        local: whether the statistics are those of this piece alone, as ``over`` then has it.
        draws: None in evaluation, where the running statistics are used.
        over: the ranks among which the batch is split; None where all have the same.
        shard: the dim 1 and its parts, where ``axis`` splits channels; then ``weight`` and ``bias``
            are of this rank's.
    """
    split = shard is not None and shard[0] == 1 and axis.size > 1
    parts = shard[1] if shard is not None and split else 0
    if running_mean is not None and running_var is not None and (not training or draws is None):
        mean, var = running_mean, running_var
        if split:
            mean, var = (by_rank(kept, axis, parts) for kept in (mean, var))
        return _normalised(x, mean, var, weight, bias, eps)
    y, mean, squares, count = _BatchNorm.apply(x, weight, bias, eps, over)
    if running_mean is not None and running_var is not None and not c10d.is_in_backward():
        if split:
            mean, squares = (gathered(value, axis, parts) for value in (mean, squares))
        with torch.no_grad():
            share = _share(tracked, momentum)
            running_mean.lerp_(mean.to(running_mean.dtype), share)
            running_var.lerp_((squares / (count - 1)).to(running_var.dtype), share)
    return y


def _share(tracked: Tensor | None, momentum: float | None) -> float:
    """The share of the new statistics; without a momentum all batches count alike."""
    if tracked is not None:
        tracked.add_(1)
    if momentum is not None:
        return momentum
    return 0.0 if tracked is None else 1.0 / float(tracked)


class _BatchNorm(torch.autograd.Function):
    """The normalised tensor; mean, squared deviations and number of values of every channel."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        over: AxisGroup | None,
    ) -> tuple[Tensor, Tensor, Tensor, int]:
        dims = [0, *range(2, x.dim())]
        own = x.numel() // x.shape[1]
        var, mean = torch.var_mean(_accumulated(x), dims, correction=0)
        ranks = 1 if over is None else over.size
        squares = var * own
        if over is not None and ranks > 1:
            means, each = _of_all(torch.stack([mean, squares]), over)
            mean = means.mean(0)
            squares = each.sum(0) + own * ((means - mean) ** 2).sum(0)
        count = own * ranks
        if count == 1:
            raise ValueError(f"BatchNorm of a single value per channel, shape {tuple(x.shape)}")
        var = squares / count
        ctx.save_for_backward(x, weight, mean, (var + eps).rsqrt())
        ctx.count, ctx.over, ctx.has_bias = count, over, bias is not None
        ctx.mark_non_differentiable(mean, squares)
        y = _normalised(x, mean, var, weight, bias, eps)
        return y, mean, squares, count

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, weight, mean, scale = ctx.saved_tensors
        dims = [0, *range(2, x.dim())]
        by_channel = (1, -1, *(1,) * (x.dim() - 2))
        deviations = (_accumulated(x) - mean.view(by_channel)) * scale.view(by_channel)
        dy = _accumulated(grad)
        sums = torch.stack([dy.sum(dims), (dy * deviations).sum(dims)])
        of_weight = None if weight is None else sums[1].to(weight.dtype)
        of_bias = sums[0].to(grad.dtype if weight is None else weight.dtype)
        if ctx.over is not None:
            sums = reduce_over(sums, ctx.over)
        first, second = (total.view(by_channel) / ctx.count for total in sums)
        factor = scale if weight is None else scale * _accumulated(weight)
        dx = (dy - first - deviations * second) * factor.view(by_channel)
        return dx.to(x.dtype), of_weight, of_bias if ctx.has_bias else None, None, None


def _normalised(
    x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    by_channel = (1, -1, *(1,) * (x.dim() - 2))
    scale = (_accumulated(var) + eps).rsqrt()
    if weight is not None:
        scale = scale * weight
    y = (_accumulated(x) - mean.view(by_channel)) * scale.view(by_channel)
    return (y if bias is None else y + bias.view(by_channel)).to(x.dtype)


def _of_all(own: Tensor, over: AxisGroup) -> Tensor:
    """(2, ranks, channels) of every rank's (2, channels)."""
    whole = c10d.wait(c10d.all_gather(own.contiguous(), over.size, over.group))
    return whole.view(over.size, *own.shape).movedim(0, 1)


def _accumulated(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
