"""Llama (Touvron et al. 2023) and its kin: Mistral, Qwen2, Qwen3; names as in transformers.

Qwen2 has biases on queries, keys and values; Qwen3 normalises queries and keys head by head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from autoplan.zoo.plain.layers import (
    META,
    Embedding,
    Linear,
    causal_attention,
    next_token_loss,
    positions_of,
)
from autoplan.zoo.plain.rope import RopeParameters, frequencies


@dataclass(frozen=True, kw_only=True, slots=True)
class LlamaSizes:
    """The fields of transformers' config that are read here, and what sets the kin apart."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_parameters: RopeParameters
    head_dim: int | None = None
    tie_word_embeddings: bool = False
    sliding_window: None = None
    has_biases: bool = False
    has_head_norms: bool = False

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads


def build(model_type: str, fields: Mapping[str, Any]) -> nn.Module | None:
    """The language model; None where a field is not known here, or positions turn otherwise."""
    known = set(LlamaSizes.__dataclass_fields__)
    required = {"rope_parameters", "rms_norm_eps", "max_position_embeddings"}
    if not required <= set(fields) <= known or fields.get("sliding_window") is not None:
        return None
    turned = RopeParameters.read(fields["rope_parameters"])
    if turned is None:
        return None
    kin = {"has_biases": model_type == "qwen2", "has_head_norms": model_type == "qwen3"}
    return LlamaForCausalLM(LlamaSizes(**{**fields, **kin, "rope_parameters": turned}))


class RMSNorm(nn.Module):
    """Computed in fp32 (Zhang & Sennrich 2019)."""

    def __init__(self, width: int, epsilon: float):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, device=META))
        self.epsilon = epsilon

    def forward(self, hidden: Tensor) -> Tensor:
        given = hidden.dtype
        hidden = hidden.to(torch.float32)
        variance = hidden.pow(2).mean(-1, keepdim=True)
        hidden = hidden * torch.rsqrt(variance + self.epsilon)
        return self.weight * hidden.to(given)


class RotaryEmbedding(nn.Module):
    """Cosines and sines of each position's turns, ``[1, tokens, head size]``.

    transformers keeps the frequencies twice, for lengths that change; so do we, to be equal.
    """

    inv_freq: Tensor

    def __init__(self, sizes: LlamaSizes):
        super().__init__()
        turns = frequencies(sizes.rope_parameters, sizes.head_size)
        self.register_buffer("inv_freq", turns, persistent=False)
        self.register_buffer("original_inv_freq", turns.clone(), persistent=False)

    def forward(self, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        turns = self.inv_freq.to(device=hidden.device, dtype=torch.float)
        angles = positions[..., None].float() * turns
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos() * 1.0, angles.sin() * 1.0
        return cos.to(dtype=hidden.dtype), sin.to(dtype=hidden.dtype)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs of one half and the other, turned (Su et al. 2021)."""
    return (x * cos) + (_quarter_turned(x) * sin)


def _quarter_turned(x: Tensor) -> Tensor:
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-second, first), dim=-1)


class LlamaAttention(nn.Module):
    def __init__(self, sizes: LlamaSizes):
        super().__init__()
        self.head_size = sizes.head_size
        width, queries = sizes.hidden_size, sizes.num_attention_heads * sizes.head_size
        kept = sizes.num_key_value_heads * sizes.head_size
        self.q_proj = Linear(width, queries, bias=sizes.has_biases)
        self.k_proj = Linear(width, kept, bias=sizes.has_biases)
        self.v_proj = Linear(width, kept, bias=sizes.has_biases)
        self.o_proj = Linear(queries, width, bias=False)
        self.has_head_norms = sizes.has_head_norms
        if sizes.has_head_norms:
            self.q_norm = RMSNorm(sizes.head_size, sizes.rms_norm_eps)
            self.k_norm = RMSNorm(sizes.head_size, sizes.rms_norm_eps)

    def forward(self, hidden: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        shape = (*hidden.shape[:-1], -1, self.head_size)
        query = self.q_proj(hidden).view(shape)
        query = (self.q_norm(query) if self.has_head_norms else query).transpose(1, 2)
        key = self.k_proj(hidden).view(shape)
        key = (self.k_norm(key) if self.has_head_norms else key).transpose(1, 2)
        value = self.v_proj(hidden).view(shape).transpose(1, 2)
        cos, sin = (turn.unsqueeze(1) for turn in turns)
        query, key = _turned(query, cos, sin), _turned(key, cos, sin)
        return self.o_proj(causal_attention(query, key, value, scale=self.head_size**-0.5))


class LlamaMLP(nn.Module):
    def __init__(self, sizes: LlamaSizes):
        super().__init__()
        width, inner = sizes.hidden_size, sizes.intermediate_size
        self.gate_proj = Linear(width, inner, bias=False)
        self.up_proj = Linear(width, inner, bias=False)
        self.down_proj = Linear(inner, width, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(hidden)) * self.up_proj(hidden))


class LlamaDecoderLayer(nn.Module):
    def __init__(self, sizes: LlamaSizes):
        super().__init__()
        self.self_attn = LlamaAttention(sizes)
        self.mlp = LlamaMLP(sizes)
        self.input_layernorm = RMSNorm(sizes.hidden_size, sizes.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(sizes.hidden_size, sizes.rms_norm_eps)

    def forward(self, hidden: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), turns)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class LlamaModel(nn.Module):
    def __init__(self, sizes: LlamaSizes):
        super().__init__()
        self.embed_tokens = Embedding(sizes.vocab_size, sizes.hidden_size)
        self.layers = nn.ModuleList(
            LlamaDecoderLayer(sizes) for _ in range(sizes.num_hidden_layers)
        )
        self.norm = RMSNorm(sizes.hidden_size, sizes.rms_norm_eps)
        self.rotary_emb = RotaryEmbedding(sizes)

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden = self.embed_tokens(input_ids)
        turns = self.rotary_emb(hidden, positions_of(hidden))
        for layer in self.layers:
            hidden = layer(hidden, turns)
        return self.norm(hidden)


class LlamaForCausalLM(nn.Module):
    """Returns the loss."""

    def __init__(self, sizes: LlamaSizes):
        super().__init__()
        self.model = LlamaModel(sizes)
        self.lm_head = Linear(sizes.hidden_size, sizes.vocab_size, bias=False)
        if sizes.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        return next_token_loss(self.lm_head(self.model(input_ids)), labels)
