"""T5 (Raffel et al. 2020) with its first, ungated feed-forward; names as in transformers.

Scores get a learned bias by relative position and are not scaled. The first block of a stack makes
the bias, and all of its blocks read it; in cross attention it is zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from autoplan.zoo.plain.layers import IGNORED, META, Embedding, Linear
from autoplan.zoo.plain.t5_positions import BUCKETS, buckets, causal

_EPSILON = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class T5Sizes:
    """The fields of transformers' config that are read here."""

    vocab_size: int
    d_model: int
    d_kv: int
    d_ff: int
    num_layers: int
    num_decoder_layers: int
    num_heads: int
    dropout_rate: float = 0.1


def build(fields: Mapping[str, Any]) -> nn.Module | None:
    """The sequence-to-sequence model; None where a field is missing or not known here."""
    known = set(T5Sizes.__dataclass_fields__)
    if not known - {"dropout_rate"} <= set(fields) <= known:
        return None
    return T5ForConditionalGeneration(T5Sizes(**fields))


class T5LayerNorm(nn.Module):
    """Scales by the root mean square, taken in fp32 (Zhang & Sennrich 2019)."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, device=META))

    def forward(self, hidden: Tensor) -> Tensor:
        variance = hidden.to(torch.float32).pow(2).mean(-1, keepdim=True)
        hidden = hidden * torch.rsqrt(variance + _EPSILON)
        if self.weight.dtype in (torch.float16, torch.bfloat16):
            hidden = hidden.to(self.weight.dtype)
        return self.weight * hidden


class T5Attention(nn.Module):
    """Attention of one side to itself, or of the decoder to what the encoder gives.

    Args:
        is_causal: whether a token sees those before it only.
        makes_bias: whether this is the attention that makes the bias of its stack.
    """

    def __init__(self, sizes: T5Sizes, *, is_causal: bool, makes_bias: bool):
        super().__init__()
        self.head_size, self.heads = sizes.d_kv, sizes.num_heads
        self.rate = sizes.dropout_rate
        self.is_causal = is_causal
        inner = sizes.num_heads * sizes.d_kv
        self.q = Linear(sizes.d_model, inner, bias=False)
        self.k = Linear(sizes.d_model, inner, bias=False)
        self.v = Linear(sizes.d_model, inner, bias=False)
        self.o = Linear(inner, sizes.d_model, bias=False)
        self.makes_bias = makes_bias
        if makes_bias:
            self.relative_attention_bias = Embedding(BUCKETS, sizes.num_heads)

    def forward(self, hidden: Tensor, read: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """The mixed values of ``read``, and the bias before what is ahead is masked."""
        tokens = hidden.shape[:-1]
        query = self.q(hidden).view(*tokens, -1, self.head_size).transpose(1, 2)
        shape = (*read.shape[:-1], -1, self.head_size)
        key = self.k(read).view(shape).transpose(1, 2)
        value = self.v(read).view(shape).transpose(1, 2)
        if bias is None:
            bias = self._bias(query, key)
        added = bias
        if self.is_causal:
            seen = causal(query.shape[2], key.shape[2], query.device)
            added = torch.where(seen, bias, torch.finfo(bias.dtype).min)
        mixed = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=added.contiguous(),
            dropout_p=self.rate if self.training else 0.0,
            scale=1.0,
        )
        mixed = mixed.reshape(mixed.shape[0], -1, query.shape[2], value.shape[-1])
        mixed = mixed.transpose(1, 2).contiguous()
        return self.o(mixed.reshape(*tokens, -1).contiguous()), bias

    def _bias(self, query: Tensor, key: Tensor) -> Tensor:
        """``[1, heads, query tokens, key tokens]``."""
        tokens = query.shape[2], key.shape[2]
        if not self.makes_bias:
            shape = (1, self.heads, *tokens)
            return torch.zeros(shape, device=query.device, dtype=query.dtype)
        numbers = buckets(*tokens, is_causal=self.is_causal, device=query.device)
        return self.relative_attention_bias(numbers).permute([2, 0, 1]).unsqueeze(0)


class T5LayerSelfAttention(nn.Module):
    def __init__(self, sizes: T5Sizes, *, is_causal: bool, makes_bias: bool):
        super().__init__()
        self.SelfAttention = T5Attention(sizes, is_causal=is_causal, makes_bias=makes_bias)
        self.layer_norm = T5LayerNorm(sizes.d_model)
        self.dropout = nn.Dropout(sizes.dropout_rate)

    def forward(self, hidden: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        normed = self.layer_norm(hidden)
        mixed, used = self.SelfAttention(normed, normed, bias)
        return hidden + self.dropout(mixed), used


class T5LayerCrossAttention(nn.Module):
    def __init__(self, sizes: T5Sizes):
        super().__init__()
        self.EncDecAttention = T5Attention(sizes, is_causal=False, makes_bias=False)
        self.layer_norm = T5LayerNorm(sizes.d_model)
        self.dropout = nn.Dropout(sizes.dropout_rate)

    def forward(
        self, hidden: Tensor, encoded: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        mixed, used = self.EncDecAttention(self.layer_norm(hidden), encoded, bias)
        return hidden + self.dropout(mixed), used


class T5DenseActDense(nn.Module):
    def __init__(self, sizes: T5Sizes):
        super().__init__()
        self.wi = Linear(sizes.d_model, sizes.d_ff, bias=False)
        self.wo = Linear(sizes.d_ff, sizes.d_model, bias=False)
        self.dropout = nn.Dropout(sizes.dropout_rate)
        self.act = nn.ReLU()

    def forward(self, hidden: Tensor) -> Tensor:
        return self.wo(self.dropout(self.act(self.wi(hidden))))


class T5LayerFF(nn.Module):
    def __init__(self, sizes: T5Sizes):
        super().__init__()
        self.DenseReluDense = T5DenseActDense(sizes)
        self.layer_norm = T5LayerNorm(sizes.d_model)
        self.dropout = nn.Dropout(sizes.dropout_rate)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.dropout(self.DenseReluDense(self.layer_norm(hidden)))


class T5Block(nn.Module):
    """Self attention, in the decoder cross attention, and the feed-forward."""

    def __init__(self, sizes: T5Sizes, *, is_decoder: bool, makes_bias: bool):
        super().__init__()
        own = T5LayerSelfAttention(sizes, is_causal=is_decoder, makes_bias=makes_bias)
        cross = [T5LayerCrossAttention(sizes)] if is_decoder else []
        self.layer = nn.ModuleList([own, *cross, T5LayerFF(sizes)])

    def forward(
        self,
        hidden: Tensor,
        bias: Tensor | None,
        encoded: Tensor | None,
        cross_bias: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        hidden, used = self.layer[0](hidden, bias)
        hidden = _finite(hidden)
        if encoded is not None:
            hidden, cross_bias = self.layer[1](hidden, encoded, cross_bias)
            hidden = _finite(hidden)
        return _finite(self.layer[-1](hidden)), used, cross_bias


def _finite(hidden: Tensor) -> Tensor:
    """In fp16 without infinities, as transformers trains it."""
    if hidden.dtype is not torch.float16:
        return hidden
    largest = torch.finfo(hidden.dtype).max
    limit = torch.where(torch.isinf(hidden).any(), largest - 1000, largest)
    return torch.clamp(hidden, min=-limit, max=limit)


class T5Stack(nn.Module):
    def __init__(self, sizes: T5Sizes, layers: int, *, is_decoder: bool):
        super().__init__()
        self.embed_tokens = Embedding(sizes.vocab_size, sizes.d_model)
        self.block = nn.ModuleList(
            T5Block(sizes, is_decoder=is_decoder, makes_bias=index == 0) for index in range(layers)
        )
        self.final_layer_norm = T5LayerNorm(sizes.d_model)
        self.dropout = nn.Dropout(sizes.dropout_rate)

    def forward(self, input_ids: Tensor, encoded: Tensor | None = None) -> Tensor:
        hidden = self.dropout(self.embed_tokens(input_ids))
        bias = cross_bias = None
        for block in self.block:
            hidden, bias, cross_bias = block(hidden, bias, encoded, cross_bias)
        return self.dropout(self.final_layer_norm(hidden))


class T5ForConditionalGeneration(nn.Module):
    """Returns the loss."""

    def __init__(self, sizes: T5Sizes):
        super().__init__()
        self.width = sizes.d_model
        self.shared = Embedding(sizes.vocab_size, sizes.d_model)
        self.encoder = T5Stack(sizes, sizes.num_layers, is_decoder=False)
        self.decoder = T5Stack(sizes, sizes.num_decoder_layers, is_decoder=True)
        self.lm_head = Linear(sizes.d_model, sizes.vocab_size, bias=False)
        for reader in (self.encoder.embed_tokens, self.decoder.embed_tokens, self.lm_head):
            reader.weight = self.shared.weight

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor, labels: Tensor) -> Tensor:
        decoded = self.decoder(decoder_input_ids, self.encoder(input_ids))
        logits = self.lm_head(decoded * self.width**-0.5)
        return functional.cross_entropy(
            logits.view(-1, logits.size(-1)), labels.view(-1), ignore_index=IGNORED
        )
