"""GPT-2 (Radford et al. 2019), and GPT-3 as it is built here; names as in transformers."""

from __future__ import annotations

import math
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

_EPSILON = 1e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class GPT2Sizes:
    """The fields of transformers' config that are read here."""

    vocab_size: int
    n_positions: int
    n_embd: int
    n_layer: int
    n_head: int
    resid_pdrop: float = 0.1
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1


def build(fields: Mapping[str, Any]) -> nn.Module | None:
    """The language model; None where a field is not known here."""
    known = set(GPT2Sizes.__dataclass_fields__)
    return GPT2LMHeadModel(GPT2Sizes(**fields)) if set(fields) <= known else None


class Conv1D(nn.Module):
    """A linear layer with the weight ``[inputs, outputs]``."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs, device=META))
        self.bias = nn.Parameter(torch.empty(outputs, device=META))

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return flat.view(*x.size()[:-1], self.weight.shape[1])


class GPT2Attention(nn.Module):
    def __init__(self, sizes: GPT2Sizes):
        super().__init__()
        self.width = sizes.n_embd
        self.head_size = sizes.n_embd // sizes.n_head
        self.c_attn = Conv1D(sizes.n_embd, 3 * sizes.n_embd)
        self.c_proj = Conv1D(sizes.n_embd, sizes.n_embd)
        self.attn_dropout = nn.Dropout(sizes.attn_pdrop)
        self.resid_dropout = nn.Dropout(sizes.resid_pdrop)

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = self.c_attn(hidden).split(self.width, dim=2)
        shape = (*key.shape[:-1], -1, self.head_size)
        key = key.view(shape).transpose(1, 2)
        value = value.view(shape).transpose(1, 2)
        query = query.view(shape).transpose(1, 2)
        rate = self.attn_dropout.p if self.training else 0.0
        mixed = causal_attention(query, key, value, scale=self.head_size**-0.5, dropout=rate)
        return self.resid_dropout(self.c_proj(mixed))


class TanhGELU(nn.Module):
    """GELU by tanh, step by step as in the original."""

    def forward(self, x: Tensor) -> Tensor:
        half, slope = 0.5 * x, math.sqrt(2.0 / math.pi)
        return half * (1.0 + torch.tanh(slope * (x + 0.044715 * torch.pow(x, 3.0))))


class GPT2MLP(nn.Module):
    def __init__(self, sizes: GPT2Sizes):
        super().__init__()
        self.c_fc = Conv1D(sizes.n_embd, 4 * sizes.n_embd)
        self.c_proj = Conv1D(4 * sizes.n_embd, sizes.n_embd)
        self.act = TanhGELU()
        self.dropout = nn.Dropout(sizes.resid_pdrop)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.dropout(self.c_proj(self.act(self.c_fc(hidden))))


class GPT2Block(nn.Module):
    def __init__(self, sizes: GPT2Sizes):
        super().__init__()
        self.ln_1 = nn.LayerNorm(sizes.n_embd, eps=_EPSILON, device=META)
        self.attn = GPT2Attention(sizes)
        self.ln_2 = nn.LayerNorm(sizes.n_embd, eps=_EPSILON, device=META)
        self.mlp = GPT2MLP(sizes)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = self.attn(self.ln_1(hidden)) + hidden
        return hidden + self.mlp(self.ln_2(hidden))


class GPT2Model(nn.Module):
    def __init__(self, sizes: GPT2Sizes):
        super().__init__()
        self.wte = Embedding(sizes.vocab_size, sizes.n_embd)
        self.wpe = Embedding(sizes.n_positions, sizes.n_embd)
        self.drop = nn.Dropout(sizes.embd_pdrop)
        self.h = nn.ModuleList(GPT2Block(sizes) for _ in range(sizes.n_layer))
        self.ln_f = nn.LayerNorm(sizes.n_embd, eps=_EPSILON, device=META)

    def forward(self, input_ids: Tensor) -> Tensor:
        input_ids = input_ids.view(-1, input_ids.shape[-1])
        embedded = self.wte(input_ids)
        hidden = self.drop(embedded + self.wpe(positions_of(embedded)))
        for block in self.h:
            hidden = block(hidden)
        return self.ln_f(hidden).view(-1, *hidden.shape[1:])


class GPT2LMHeadModel(nn.Module):
    """Returns the loss."""

    def __init__(self, sizes: GPT2Sizes):
        super().__init__()
        self.transformer = GPT2Model(sizes)
        self.lm_head = Linear(sizes.n_embd, sizes.vocab_size, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        return next_token_loss(self.lm_head(self.transformer(input_ids)), labels)
