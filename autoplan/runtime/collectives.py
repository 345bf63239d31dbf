"""Messages between the ranks of one mesh axis, each paired with the message of its backward.

A function is named ``<forward>__<backward>``: ``all_reduce__identity`` sums over the ranks going
forward and passes the gradient through going back. The pairs are autograd functions over torch's
functional collectives, which trace under ``torch.compile``; torch's own gradients of those
collectives are not used, since the right one depends on what the reader of the tensor leaves
behind (see ``autoplan.sharding.placement``). On an axis of one rank every pair is the identity.

``Shard(dim, parts)`` reads ``dim`` as (parts, ranks, chunk), and a rank holds one index of the
middle factor; ``_by_rank`` and ``_whole`` move that factor to the front and back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autoplan.runtime import torch_private as c10d


@dataclass(frozen=True, slots=True)
class AxisGroup:
    """This rank's place on one mesh axis.

    Attributes:
        name: ``dp`` or ``tp``.
        size: ranks on the axis.
        rank: this rank's index; take it from ``DeviceMesh.get_local_rank``.
        group: name of the process group (``ProcessGroup.group_name``).
    """

    name: str
    size: int
    rank: int
    group: str


def identity__all_reduce(x: Tensor, axis: AxisGroup) -> Tensor:
    """A whole tensor whose readers each leave a term of the gradient."""
    return _IdentityAllReduce.apply(x, axis) if axis.size > 1 else x


def all_reduce__identity(x: Tensor, axis: AxisGroup) -> Tensor:
    """The sum of the ranks' terms, read alike on every rank."""
    return _AllReduceIdentity.apply(x, axis) if axis.size > 1 else x


def all_reduce__all_reduce(x: Tensor, axis: AxisGroup) -> Tensor:
    """The sum of the ranks' terms; readers each leave a term of the gradient."""
    return _AllReduceAllReduce.apply(x, axis) if axis.size > 1 else x


def all_gather__slice(x: Tensor, dim: int, axis: AxisGroup, parts: int = 1) -> Tensor:
    """The whole of a sharded tensor, read alike on every rank."""
    return _AllGatherSlice.apply(x, axis, dim, parts) if axis.size > 1 else x


def all_gather__reduce_scatter(x: Tensor, dim: int, axis: AxisGroup, parts: int = 1) -> Tensor:
    """The whole of a sharded tensor; readers each leave a term of the gradient."""
    return _AllGatherReduceScatter.apply(x, axis, dim, parts) if axis.size > 1 else x


def reduce_scatter__all_gather(x: Tensor, dim: int, axis: AxisGroup, parts: int = 1) -> Tensor:
    """This rank's shard of the sum of the ranks' terms."""
    return _ReduceScatterAllGather.apply(x, axis, dim, parts) if axis.size > 1 else x


def slice__all_gather(x: Tensor, dim: int, axis: AxisGroup, parts: int = 1) -> Tensor:
    """This rank's shard of a whole tensor, as a copy."""
    return _SliceAllGather.apply(x, axis, dim, parts) if axis.size > 1 else x


def all_to_all__all_to_all(
    x: Tensor,
    split_dim: int,
    concat_dim: int,
    axis: AxisGroup,
    *,
    split_parts: int = 1,
    concat_parts: int = 1,
) -> Tensor:
    """A tensor sharded on ``concat_dim``, now sharded on ``split_dim``."""
    if axis.size == 1:
        return x
    return _AllToAll.apply(x, axis, (split_dim, split_parts), (concat_dim, concat_parts))


def regroup__regroup(
    x: Tensor, dim: int, axis: AxisGroup, *, old_parts: int, new_parts: int
) -> Tensor:
    """A tensor sharded on ``dim`` by parts, now sharded on it by another number of parts."""
    return _Regroup.apply(x, axis, dim, old_parts, new_parts) if axis.size > 1 else x


def mask__identity(x: Tensor, axis: AxisGroup) -> Tensor:
    """A whole tensor as a sum of terms: itself on the first rank, zeros on the others."""
    return _MaskIdentity.apply(x, axis) if axis.size > 1 else x


def rank_tensor(axis: AxisGroup, device: torch.device) -> Tensor:
    """This rank's index as a tensor of shape (1,)."""
    return torch.arange(axis.size, device=device).narrow(0, axis.rank, 1)


def arrived(values: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Values whose sums may be under way, once they are there; a process alone awaits none."""
    if not dist.is_initialized():
        return tuple(values)
    return tuple(c10d.wait(value) for value in values)


def reduce_over(x: Tensor, axis: AxisGroup, op: str = "sum") -> Tensor:
    """The sum (or ``max``) over the ranks, outside autograd."""
    if axis.size == 1:
        return x
    return c10d.wait(c10d.all_reduce(x.contiguous(), op, axis.group))


def by_rank(x: Tensor, axis: AxisGroup, parts: int) -> Tensor:
    """This rank's shard of a whole vector, outside autograd."""
    return _slice(x, axis, 0, parts)


def gathered(x: Tensor, axis: AxisGroup, parts: int) -> Tensor:
    """The whole of a sharded vector, outside autograd."""
    return _all_gather(x, axis, 0, parts)


def _by_rank(x: Tensor, dim: int, parts: int, ranks: int) -> Tensor:
    """The rank factor of ``dim`` moved to a new leading dim; a view."""
    chunk = x.shape[dim] // (parts * ranks)
    return x.unflatten(dim, (parts, ranks, chunk)).movedim(dim + 1, 0)


def _whole(by_rank: Tensor, dim: int) -> Tensor:
    """The inverse of ``_by_rank``, contiguous; ``parts`` and ``chunk`` dims are still apart."""
    return by_rank.movedim(0, dim + 1).flatten(dim, dim + 2).contiguous()


def _all_reduce(x: Tensor, axis: AxisGroup, *_: int) -> Tensor:
    return reduce_over(x, axis)


def _identity(x: Tensor, axis: AxisGroup, *_: int) -> Tensor:
    return x.view_as(x)


def _all_gather(x: Tensor, axis: AxisGroup, dim: int, parts: int) -> Tensor:
    gathered = c10d.wait(c10d.all_gather(x.contiguous(), axis.size, axis.group))
    ranks = gathered.view(axis.size, *x.shape)
    return _whole(ranks.unflatten(dim + 1, (parts, x.shape[dim] // parts)), dim)


def _reduce_scatter(x: Tensor, axis: AxisGroup, dim: int, parts: int) -> Tensor:
    ranks = _by_rank(x, dim, parts, axis.size).flatten(dim + 1, dim + 2).contiguous()
    summed = c10d.reduce_scatter(ranks.flatten(0, 1), "sum", axis.size, axis.group)
    return c10d.wait(summed)


def _slice(x: Tensor, axis: AxisGroup, dim: int, parts: int) -> Tensor:
    own = _by_rank(x, dim, parts, axis.size).narrow(0, axis.rank, 1).squeeze(0)
    return own.clone(memory_format=torch.contiguous_format).flatten(dim, dim + 1)


def _all_to_all(
    x: Tensor, axis: AxisGroup, split: tuple[int, int], concat: tuple[int, int]
) -> Tensor:
    (split_dim, split_parts), (concat_dim, concat_parts) = split, concat
    sent = _by_rank(x, split_dim, split_parts, axis.size).flatten(split_dim + 1, split_dim + 2)
    ones = [1] * axis.size
    received = c10d.wait(c10d.all_to_all(sent.contiguous(), ones, ones, axis.group))
    chunk = x.shape[concat_dim] // concat_parts
    return _whole(received.unflatten(concat_dim + 1, (concat_parts, chunk)), concat_dim)


def _all_to_all_back(
    x: Tensor, axis: AxisGroup, split: tuple[int, int], concat: tuple[int, int]
) -> Tensor:
    return _all_to_all(x, axis, concat, split)


def _regroup(x: Tensor, axis: AxisGroup, dim: int, old_parts: int, new_parts: int) -> Tensor:
    return _slice(_all_gather(x, axis, dim, old_parts), axis, dim, new_parts)


def _regroup_back(x: Tensor, axis: AxisGroup, dim: int, old_parts: int, new_parts: int) -> Tensor:
    return _regroup(x, axis, dim, new_parts, old_parts)


def _keep_on_first(x: Tensor, axis: AxisGroup) -> Tensor:
    first = rank_tensor(axis, x.device) == 0
    return torch.where(first if x.dim() else first[0], x, torch.zeros_like(x))


Message = Callable[..., Tensor]


def _in_parts(message: Message) -> Message:
    """Complex numbers travel as the two real ones that they are made of."""

    def sent(x: Tensor, axis: AxisGroup, *dims: Any) -> Tensor:
        if not x.is_complex():
            return message(x, axis, *dims)
        made = message(torch.view_as_real(x.resolve_conj()), axis, *dims)
        return torch.view_as_complex(made.contiguous())

    return sent


def _pair(forward: Message, backward: Message) -> type[torch.autograd.Function]:
    forward, backward = _in_parts(forward), _in_parts(backward)

    class Pair(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, axis: AxisGroup, *dims: int) -> Tensor:
            ctx.axis, ctx.dims = axis, dims
            return forward(x, axis, *dims)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
            return backward(grad, ctx.axis, *ctx.dims), None, *(None for _ in ctx.dims)

    return Pair


class _MaskIdentity(torch.autograd.Function):
    """Leaves a weight a gradient in memory of its own, to which later ones are added in place.

    That of a sum is the same tensor for all that is added, of which others may hold parts.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: AxisGroup) -> Tensor:
        ctx.is_weight = x.is_leaf
        return _keep_on_first(x, axis)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad.clone() if ctx.is_weight else grad.view_as(grad), None


_IdentityAllReduce = _pair(_identity, _all_reduce)
_AllReduceIdentity = _pair(_all_reduce, _identity)
_AllReduceAllReduce = _pair(_all_reduce, _all_reduce)
_AllGatherSlice = _pair(_all_gather, _slice)
_AllGatherReduceScatter = _pair(_all_gather, _reduce_scatter)
_ReduceScatterAllGather = _pair(_reduce_scatter, _all_gather)
_SliceAllGather = _pair(_slice, _all_gather)
_AllToAll = _pair(_all_to_all, _all_to_all_back)
_Regroup = _pair(_regroup, _regroup_back)
