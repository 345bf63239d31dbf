"""What the plain models share: layers whose weights are never drawn, attention, and the loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

META = torch.device("meta")
IGNORED = -100


class Linear(nn.Linear):
    """A linear layer on the meta device."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool):
        super().__init__(inputs, outputs, bias=bias, device=META)

    def reset_parameters(self) -> None:
        """There is nothing to draw on the meta device."""


class Embedding(nn.Embedding):
    """A table of vectors on the meta device."""

    def __init__(self, rows: int, width: int):
        super().__init__(rows, width, device=META)

    def reset_parameters(self) -> None:
        """There is nothing to draw on the meta device."""


def causal_attention(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, dropout: float = 0.0
) -> Tensor:
    """Attention to what came before, ``[batch, tokens, heads x head size]``.

    The first reshape changes nothing; transformers has it.

    Args:
        query: ``[batch, heads, tokens, head size]``.
        key, value: likewise, with a divisor of the heads.
    """
    shared = {"enable_gqa": True} if query.shape[1] != key.shape[1] else {}
    mixed = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=None, dropout_p=dropout, scale=scale, is_causal=True, **shared
    )
    mixed = mixed.reshape(mixed.shape[0], -1, query.shape[2], value.shape[-1])
    mixed = mixed.transpose(1, 2).contiguous()
    return mixed.reshape(*mixed.shape[:-2], -1).contiguous()


def positions_of(embedded: Tensor) -> Tensor:
    """``[1, tokens]``: 0, 1, ..."""
    numbers = torch.arange(embedded.shape[1], device=embedded.device) + 0
    return numbers.unsqueeze(0)


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy of each token's successor, in fp32; the last token has none."""
    logits = logits.float()
    shifted = functional.pad(labels, (0, 1), value=IGNORED)[..., 1:].contiguous()
    return functional.cross_entropy(
        logits.view(-1, logits.shape[-1]), shifted.view(-1), ignore_index=IGNORED
    )
