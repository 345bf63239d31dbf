"""Recurrent layers as a GPU runs them: what they compute, and what they keep for the backward.

On a CPU one operator does a layer's steps and computes its gates again in the backward. A GPU keeps
of every step the gates and the state behind them, as PyTorch's fused cells do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten
RECURRENT = frozenset(
    {_aten.lstm.input, _aten.gru.input, _aten.rnn_tanh.input, _aten.rnn_relu.input}
)


def recurrent_flops(operands: Sequence[Tensor]) -> int:
    """Every matrix meets every step of every sample; zero for a sequence without samples."""
    if operands[0].dim() != 3:
        return 0
    steps = operands[0].shape[0] * operands[0].shape[1]
    return 2 * steps * sum(weight.numel() for weight in operands[1:] if weight.dim() == 2)


def keeping_gates(target: Any, args: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """The call's results, with the gates and states of all steps kept."""
    output, *states = target(*args)
    inner = [weight for weight in args[2] if weight.dim() == 2][1::2]
    each = sum(weight.shape[0] + weight.shape[1] for weight in inner)
    kept = output.new_empty(*output.shape[:-1], each)
    return _Keeping.apply(output, kept), *states


class _Keeping(torch.autograd.Function):
    """Returns its first operand and keeps the second."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, kept: Tensor) -> Tensor:
        ctx.save_for_backward(kept)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None
