"""A model on one device with the dropout masks that parallel training has: what to compare with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor

from autoplan.runtime.dropout import dropped
from autoplan.runtime.dropout_mask import keep_mask
from autoplan.runtime.random import Draws
from autoplan.trace.torch_private import CHECKPOINTED


@contextmanager
def reference_dropout(*, seed: int, step: int = 0) -> Iterator[None]:
    """Inside, one eager forward drops what ``train_step`` number ``step`` drops.

        with autoplan.reference_dropout(seed=1, step=step):
            loss = model(**global_batch)

    Replaced are ``dropout``, ``dropout1d`` to ``dropout3d`` and, where it drops,
    ``scaled_dot_product_attention`` of ``torch.nn.functional``, as modules call them, and
    ``bernoulli_`` of tensors. Enter it anew for every forward, and compute nothing else inside:
    dropouts are told apart by the order in which they run. So that none runs again in the backward,
    ``torch.utils.checkpoint`` keeps what it would compute again.

    Args:
        seed: as given to ``autoplan.compile``.
        step: how many steps with a backward were made before, from the first.
    """
    drop = _Dropout(Draws(seed=seed & (2**64 - 1), step=step))
    with (
        mock.patch.object(F, "dropout", drop),
        mock.patch.object(F, "dropout1d", drop.features(of_sample=2)),
        mock.patch.object(F, "dropout2d", drop.features()),
        mock.patch.object(F, "dropout3d", drop.features(of_sample=4)),
        mock.patch.object(Tensor, "bernoulli_", drop.bernoulli()),
        mock.patch.object(F, "scaled_dot_product_attention", drop.attention),
        mock.patch.object(torch.utils.checkpoint, CHECKPOINTED, _kept),
    ):
        yield


def _kept(*_: Any, **__: Any) -> Iterator[None]:
    """What brackets a checkpointed call, without the checkpoint."""
    yield


class _Dropout:
    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self._number = 0
        self._fused = F.scaled_dot_product_attention

    def __call__(
        self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0:
            return input
        found = self._dropped(input, p)
        return input.copy_(found) if inplace else found

    def features(self, of_sample: int = 0) -> Callable[..., Tensor]:
        """What drops whole channels of samples; with so many dims it is given one alone."""

        def dropout(
            input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
        ) -> Tensor:
            channels = 1 if input.dim() == of_sample else 2
            ones = input.new_ones([*input.shape[:channels], *[1] * (input.dim() - channels)])
            found = input * self(ones, p, training)
            return input.copy_(found) if inplace else found

        return dropout

    def bernoulli(self) -> Callable[..., Tensor]:
        """The method of tensors: ones with probability ``p``, else zeros."""

        def bernoulli_(tensor: Tensor, p: float = 0.5) -> Tensor:
            return tensor.copy_(self(torch.ones_like(tensor), 1 - p) * p)

        return bernoulli_

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if dropout_p == 0:
            return self._fused(
                query, key, value, attn_mask, dropout_p, is_causal,
                scale=scale, enable_gqa=enable_gqa,
            )  # fmt: skip
        if enable_gqa:
            groups = query.shape[-3] // key.shape[-3]
            key, value = (x.repeat_interleave(groups, -3) for x in (key, value))
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        scores = query * scale @ key.transpose(-2, -1)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -math.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        return self._dropped(torch.ops.aten._safe_softmax(scores, -1), dropout_p) @ value

    def _dropped(self, x: Tensor, p: float) -> Tensor:
        key = self._draws.key(self._number)
        self._number += 1
        if p >= 1:
            return x * 0
        return dropped(x, keep_mask(x.shape, [()] * x.dim(), key, p, x.device), p)
