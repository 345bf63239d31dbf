"""Connectionist temporal classification as one operator of samples, ``autoplan::ctc_loss``.

The size of what PyTorch's own keeps for its backward depends on the data, so that it cannot be
traced. This one keeps nothing but its operands, and aligns again in its backward. It takes the
targets of every sample in a row of their own, and gives one loss for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

Lengths = Tensor | Sequence[int]


@torch.library.custom_op("autoplan::ctc_loss", mutates_args=())
def losses(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    """One loss for each sample.

    Args:
        log_probs: ``[steps, samples, classes]``.
        targets: ``[samples, longest]``.
        input_lengths, target_lengths: ``[samples]``.
    """
    lengths = input_lengths, target_lengths
    return torch.ctc_loss(log_probs, targets, *lengths, blank, 0, zero_infinity)


@losses.register_fake
def _(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity):
    return log_probs.new_empty(log_probs.shape[1])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.options = inputs[4:]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    log_probs, targets, steps, lengths = ctx.saved_tensors
    blank, zero_infinity = ctx.options
    with torch.enable_grad():
        leaf = log_probs.detach().requires_grad_()
        again = torch.ctc_loss(leaf, targets, steps, lengths, blank, 0, zero_infinity)
        (found,) = torch.autograd.grad(again, leaf, gradient)
    return found, None, None, None, None, None


losses.register_autograd(_backward, setup_context=_keep)


@contextmanager
def ctc_by_samples() -> Iterator[None]:
    """Runs ``F.ctc_loss``, and with it ``nn.CTCLoss``, as that operator where targets are rows."""
    original: Any = F.ctc_loss

    def ctc_loss(
        log_probs: Tensor,
        targets: Tensor,
        input_lengths: Lengths,
        target_lengths: Lengths,
        blank: int = 0,
        reduction: str = "mean",
        zero_infinity: bool = False,
    ) -> Tensor:
        given = input_lengths, target_lengths
        if log_probs.dim() != 3 or targets.dim() != 2:
            return original(log_probs, targets, *given, blank, reduction, zero_infinity)
        lengths = [_tensor(each, targets) for each in given]
        each = losses(log_probs, targets, *lengths, blank, zero_infinity)
        if reduction == "mean":
            return (each / lengths[1].clamp(min=1)).mean()
        return each.sum() if reduction == "sum" else each

    with mock.patch.object(F, "ctc_loss", ctc_loss):
        yield


def _tensor(lengths: Lengths, like: Tensor) -> Tensor:
    return lengths if isinstance(lengths, Tensor) else like.new_tensor(lengths)
