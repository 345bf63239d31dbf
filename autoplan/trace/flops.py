"""Floating-point operations of a node's backward, and of forwards that PyTorch does not count.

A contraction ``C = A B`` of F operations has two gradients, ``dA = dC B^T`` and ``dB = A^T dC``,
of F operations each; only those of operands that need gradients are computed. Fused attention
computes its scores again: 2.5 F (five matrix products for the forward's two; Dao, FlashAttention-2,
section 4.1). The forward's count is ``torch.utils.flop_counter``'s, with formulas of ours where it
has none. It takes the whole score matrix also where the attention is causal, and counts nothing for
operators that move data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from autoplan.trace.experts import EXPERTS
from autoplan.trace.recurrent import RECURRENT

_aten = torch.ops.aten
_ATTENTION_BACKWARD = 2.5
_ADDED_FIRST = {
    _aten.addmm.default,
    _aten.baddbmm.default,
    _aten.addmv.default,
    _aten.addbmm.default,
}


def backward_flops(target: Any, forward: int, operands: Sequence[torch.Tensor]) -> int:
    """Operations of the backward of one call.

    Args:
        target: the operator.
        forward: operations of its forward.
        operands: its tensor operands, in order.
    """
    if not forward:
        return 0
    if target is EXPERTS:
        return _experts_backward(forward, operands)
    if target in RECURRENT:
        return 2 * forward if any(operand.requires_grad for operand in operands) else 0
    if target is _aten.scaled_dot_product_attention.default:
        needed = any(operand.requires_grad for operand in operands)
        return int(_ATTENTION_BACKWARD * forward) if needed else 0
    factors = operands[1:] if target in _ADDED_FIRST else operands[:2]
    return forward * sum(factor.requires_grad for factor in factors)


def grouped_linear_flops(rows: torch.Size, weight: torch.Size, ends: torch.Size, **_: Any) -> int:
    """Of ``autoplan::grouped_linear``, from the shapes of its operands."""
    return 2 * rows[0] * rows[1] * weight[1]


def attention_on_cpu_flops(
    query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any
) -> int:
    """Of fused attention on CPUs, whose kernel PyTorch does not count: two products of all scores,
    from the shapes of its operands (..., heads, positions, head_dim)."""
    return 2 * query[:-1].numel() * key[-2] * (query[-1] + value[-1])


def _experts_backward(forward: int, operands: Sequence[torch.Tensor]) -> int:
    """Two thirds of the forward go into the inner width (twice as wide with the gate), one out."""
    tokens, gate_up, down = (operands[i].requires_grad for i in (0, 3, 4))
    return forward * (2 * (tokens + gate_up) + (tokens or gate_up) + down) // 3
