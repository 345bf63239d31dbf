"""A model to plan for, together with what one training step feeds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelUnderPlan:
    """What ``trace.capture.capture`` needs.

    Attributes:
        model: in train mode where autoplan built it, else as the factory left it.
        example_inputs: a tuple of arguments or a dict of keyword arguments, batch on dim 0.
        seq_len: tokens per sample of a language model, None for other models.
        loss_fn: called as ``loss_fn(outputs, targets)``; None when the model returns its loss.
    """

    model: nn.Module
    example_inputs: tuple[Any, ...] | dict[str, Any]
    seq_len: int | None = None
    loss_fn: Callable[[Any, Any], Tensor] | None = None
