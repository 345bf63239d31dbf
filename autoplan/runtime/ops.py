"""Operators that cannot run on shards as they are: they know where a shard lies in the whole.

Each takes the arguments of the operator it stands for, then ``axis``. Strategies name them
(``Strategy.local_op``).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.attention.bias import causal_lower_right

from autoplan.errors import UnsupportedModelError
from autoplan.runtime.collectives import AxisGroup, rank_tensor, reduce_over
from autoplan.trace.experts import experts_from
from autoplan.trace.lookups import bags


def local(tensor: Tensor) -> Tensor:
    """This rank's piece of a parameter: of a DTensor, else the tensor itself."""
    if not isinstance(tensor, DTensor):
        return tensor
    piece = tensor.to_local()
    if torch.compiler.is_compiling():
        return _Own.apply(piece)
    if piece.requires_grad:
        piece.register_hook(_own)
    return piece


def _own(grad: Tensor) -> Tensor:
    """A gradient in memory of its own.

    DTensor hides from autograd that two gradients are one tensor, as those of ``a + b`` are, or
    views of one; sums over microbatches would then mix.
    """
    return grad.clone()


class _Own(torch.autograd.Function):
    """As the hook, for compilers, which break at hooks."""

    @staticmethod
    def forward(ctx: Any, piece: Tensor) -> Tensor:
        return piece.view_as(piece)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _own(grad)


def vocab_parallel_embedding(
    weight: Tensor,
    ids: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    *,
    axis: AxisGroup,
) -> Tensor:
    """Rows of a table whose rows are split over the ranks, as a term: zeros for others' rows.

    The sum over the ranks is ``aten.embedding``. Rows equal to ``padding_idx`` get no gradient.

    Raises:
        UnsupportedModelError: with ``scale_grad_by_freq`` or ``sparse``.
    """
    if scale_grad_by_freq or sparse:
        raise UnsupportedModelError(
            "embedding with scale_grad_by_freq or sparse gradients cannot be split by rows; "
            "turn it off or pin tp=1"
        )
    rows = weight.shape[0]
    shifted = ids - rank_tensor(axis, ids.device) * rows
    own = (shifted >= 0) & (shifted < rows)
    found = torch.embedding(weight, torch.where(own, shifted, 0))
    if padding_idx >= 0:
        found = torch.where((ids == padding_idx).unsqueeze(-1), found.detach(), found)
    return torch.where(own.unsqueeze(-1), found, 0)


def vocab_parallel_bags(
    table: Tensor,
    ids: Tensor,
    offsets: Tensor | None,
    weights: Tensor | None,
    mode: str,
    padding_idx: int,
    include_last_offset: bool,
    *,
    axis: AxisGroup,
) -> Tensor:
    """``autoplan.bags`` of a table whose rows are split over the ranks, as a term.

    Entries of others' rows weigh nothing. A mean divides by all entries that count, whoever has
    their rows.
    """
    rows = table.shape[0]
    shifted = ids - rank_tensor(axis, ids.device) * rows
    counted = ids != padding_idx
    own = (shifted >= 0) & (shifted < rows) & counted
    shares = torch.where(own, 1 if weights is None else weights, 0).to(table.dtype)
    if mode == "mean":
        shares = shares / counted.sum(-1, keepdim=True).clamp(min=1).to(table.dtype)
    found = torch.where(own, shifted, 0)
    return bags(table, found, offsets, shares, "sum", -1, include_last_offset)


def own_experts(
    tokens: Tensor,
    index: Tensor,
    weight: Tensor,
    gate_up: Tensor,
    down: Tensor,
    activation: str,
    *,
    axis: AxisGroup,
) -> Tensor:
    """``autoplan.experts`` of this rank's experts, as a term: the sum over the ranks is the layer.

    Experts are split over the ranks, all of which have all tokens.
    """
    first = rank_tensor(axis, index.device) * gate_up.shape[0]
    return experts_from(first, tokens, index, weight, gate_up, down, activation)


def causal_attention_of_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: None = None,
    dropout_p: float = 0.0,
    is_causal: bool = True,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    axis: AxisGroup,
) -> Tensor:
    """Causal ``scaled_dot_product_attention`` of queries whose positions are split over the ranks.

    Keys and values are whole, at as many positions as all ranks have queries. On GPUs a rank leaves
    out the keys behind its queries, and flash attention knows the mask; the last rank sees all.
    """
    rows, end = query.shape[-2], None
    if query.is_cuda:
        end = (axis.rank + 1) * rows
        seen = causal_lower_right(rows, end)
    else:
        places = rank_tensor(axis, query.device) * rows + torch.arange(rows, device=query.device)
        seen = torch.arange(key.shape[-2], device=query.device) <= places.unsqueeze(-1)
    return F.scaled_dot_product_attention(
        query, key[..., :end, :], value[..., :end, :], seen, scale=scale, enable_gqa=enable_gqa
    )


def vocab_parallel_cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    *,
    axis: AxisGroup,
) -> Tensor:
    """``aten.cross_entropy_loss`` of logits whose classes are split over the ranks.

    With x the logits, K classes, s the smoothing and t the target, the loss of one position is
    ``logsumexp(x) - (1 - s) x_t - (s / K) sum(x)``. Classes are dim 1 (dim 0 of a vector). Halves
    are computed in float32, like torch's own. The result is the same on every rank.

    Args:
        reduction: 0 none, 1 mean over the positions that count, 2 sum.

    Raises:
        UnsupportedModelError: with class weights, or targets that are probabilities.
    """
    if weight is not None or target.is_floating_point():
        raise UnsupportedModelError(
            "cross entropy with class weights or probability targets cannot be split by classes; "
            "keep its logits whole"
        )
    classes = 0 if logits.dim() == 1 else 1
    counted = target != ignore_index
    losses = _ClassSplitLoss.apply(
        logits, torch.where(counted, target, 0), label_smoothing, classes, axis
    )
    losses = torch.where(counted, losses, 0)
    if reduction != 0:
        losses = losses.sum()
    if reduction == 1:
        losses = losses / counted.sum()
    return losses.to(logits.dtype)


class _ClassSplitLoss(torch.autograd.Function):
    """Loss by position, in the accumulation type.

    The backward computes the softmax again from the logits and their log-sum-exp.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, smoothing: float, dim: int, axis: AxisGroup
    ) -> Tensor:
        x = _accumulated(logits)
        largest = reduce_over(x.amax(dim), axis, "max")
        total = reduce_over((x - largest.unsqueeze(dim)).exp().sum(dim), axis)
        log_sum = largest + total.log()
        own, index = _own_target(target, logits.shape[dim], dim, axis)
        picked = torch.where(own, x.gather(dim, index), 0).squeeze(dim)
        taken = (1 - smoothing) * picked
        if smoothing:
            taken = taken + smoothing / (logits.shape[dim] * axis.size) * x.sum(dim)
        ctx.save_for_backward(logits, target, log_sum)
        ctx.smoothing, ctx.dim, ctx.axis = smoothing, dim, axis
        return log_sum - reduce_over(taken, axis)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, target, log_sum = ctx.saved_tensors
        smoothing, dim, axis = ctx.smoothing, ctx.dim, ctx.axis
        size = logits.shape[dim]
        share = (_accumulated(logits) - log_sum.unsqueeze(dim)).exp()
        if smoothing:
            share = share - smoothing / (size * axis.size)
        own, index = _own_target(target, size, dim, axis)
        share = share.scatter_add(dim, index, own.to(share.dtype) * (smoothing - 1.0))
        return (share * grad.unsqueeze(dim)).to(logits.dtype), None, None, None, None


def _accumulated(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _own_target(target: Tensor, size: int, dim: int, axis: AxisGroup) -> tuple[Tensor, Tensor]:
    """Which targets lie in this rank's classes, and their index there (0 elsewhere)."""
    shifted = target.unsqueeze(dim) - rank_tensor(axis, target.device) * size
    own = (shifted >= 0) & (shifted < size)
    return own, torch.where(own, shifted, 0)
