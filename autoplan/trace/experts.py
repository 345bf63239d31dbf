"""A layer of experts as one operator: ``autoplan::experts``.

Tokens are sorted by expert, multiplied group by group and put back in their places. The order of
the sort is the business of one call: it says nothing outside of it, and nothing that is known of
the rows of its tensors (which samples they belong to) holds between the sort and the way back. As
one operator the layer is simple: every row of the result follows from the same row of the tokens.

There is no capacity, so no token is dropped and each gets the same result whatever is beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

_LIBRARY = torch.library.Library("autoplan", "FRAGMENT")
_LIBRARY.define(
    "experts(Tensor tokens, Tensor index, Tensor weight, Tensor gate_up, Tensor down, "
    "str activation) -> Tensor"
)

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
}
"""By the names that configs of transformers have for them."""


def experts(
    tokens: Tensor, index: Tensor, weight: Tensor, gate_up: Tensor, down: Tensor, activation: str
) -> Tensor:
    """What each token's experts make of it, by their weights.

    With ``[g; u] = gate_up[e] x``, expert e makes ``down[e] (activation(g) * u)`` of a token x.

    Args:
        tokens: ``[tokens, hidden]``.
        index: ``[tokens, per_token]``, the experts of each token.
        weight: ``[tokens, per_token]``, their shares in its result.
        gate_up: ``[experts, 2 * inner, hidden]``.
        down: ``[experts, hidden, inner]``.
        activation: one of ``ACTIVATIONS``.

    Returns:
        ``[tokens, hidden]`` in the dtype of ``tokens``; summed in that of the weights if wider.
    """
    ids, rows = index.flatten().sort(stable=True)
    return _routed(tokens, rows, ids, weight, gate_up, down, activation)


def experts_from(
    first: Tensor,
    tokens: Tensor,
    index: Tensor,
    weight: Tensor,
    gate_up: Tensor,
    down: Tensor,
    activation: str,
) -> Tensor:
    """The term of ``experts`` that some of them make: those from number ``first``.

    ``gate_up`` and ``down`` are theirs. Memory and time follow the number of tokens routed to them.
    """
    ids, rows = (index.flatten() - first).sort(stable=True)
    own = (ids >= 0) & (ids < gate_up.shape[0])
    return _routed(tokens, rows[own], ids[own], weight, gate_up, down, activation)


def _routed(
    tokens: Tensor,
    rows: Tensor,
    ids: Tensor,
    weight: Tensor,
    gate_up: Tensor,
    down: Tensor,
    activation: str,
) -> Tensor:
    """``rows`` number the pairs of a token and an expert, by ascending expert ``ids``."""
    of_token = rows // weight.shape[1]
    numbers = torch.arange(gate_up.shape[0], device=ids.device)
    ends = torch.searchsorted(ids, numbers, right=True, out_int32=True)
    both = torch.ops.autoplan.grouped_linear(tokens[of_token], gate_up, ends)
    gate, up = both.chunk(2, dim=-1)
    made = torch.ops.autoplan.grouped_linear(ACTIVATIONS[activation](gate) * up, down, ends)
    shares = made * weight.flatten()[rows].unsqueeze(-1)
    results = shares.new_zeros(tokens.shape)
    return results.index_put_((of_token,), shares, accumulate=True).to(tokens.dtype)


_LIBRARY.impl("experts", experts, "CompositeImplicitAutograd")
EXPERTS = torch.ops.autoplan.experts.default


@torch.library.custom_op("autoplan::grouped_linear", mutates_args=())
def _grouped_linear(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Rows up to ``ends[e]`` and from ``ends[e - 1]``, times the transpose of ``weight[e]``.

    Args:
        rows: ``[rows, k]``; the last of ``ends`` is their number.
        weight: ``[groups, n, k]``.
        ends: ``[groups]``, int32, ascending.

    Returns:
        ``[rows, n]``.
    """
    if _has_kernel(rows):
        return F.grouped_mm(rows, weight.mT, offs=ends)
    result = rows.new_empty(rows.shape[0], weight.shape[1])
    for group, part in enumerate(_parts(ends)):
        torch.mm(rows[part], weight[group].T, out=result[part])
    return result


@torch.library.custom_op("autoplan::grouped_outer", mutates_args=())
def _grouped_outer(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    """``[groups, n, k]``: of each group of rows, the transpose of ``[rows, n]`` times
    ``[rows, k]``."""
    if _has_kernel(left):
        return F.grouped_mm(left.mT, right, offs=ends)
    result = left.new_empty(ends.shape[0], left.shape[1], right.shape[1])
    for group, part in enumerate(_parts(ends)):
        torch.mm(left[part].T, right[part], out=result[group])
    return result


@_grouped_linear.register_fake
def _(rows, weight, ends):
    return rows.new_empty(rows.shape[0], weight.shape[1])


@_grouped_outer.register_fake
def _(left, right, ends):
    return left.new_empty(ends.shape[0], left.shape[1], right.shape[1])


def _keep(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx, grad):
    rows, weight, ends = ctx.saved_tensors
    of_rows, of_weight, _ = ctx.needs_input_grad
    grad = grad.contiguous()
    return (
        torch.ops.autoplan.grouped_linear(grad, weight.mT, ends) if of_rows else None,
        torch.ops.autoplan.grouped_outer(grad, rows, ends) if of_weight else None,
        None,
    )


_grouped_linear.register_autograd(_backward, setup_context=_keep)


def _has_kernel(tensor: Tensor) -> bool:
    """Whether torch's grouped product runs here: for some rows of bfloat16 on CUDA."""
    some = tensor.is_cuda and tensor.shape[0] > 0
    return some and tensor.dtype == torch.bfloat16 and torch.version.hip is None


def _parts(ends: Tensor) -> list[slice]:
    stops = ends.tolist()
    return [slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]
