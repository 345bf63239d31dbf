"""Switch Transformer (Fedus, Zoph and Shazeer 2021): T5 with experts in every other layer.

Each token goes to one expert; an expert takes so many tokens of a sequence, the first that come,
and the others pass by (section 2.2). Tokens reach experts by products with one-hot places, as in
the original's code (appendix F), so that the shares of work are known. The auxiliary loss
(equation 4) balances the experts of each sequence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

_EPSILON = 1e-6
_FURTHEST = 128
"""Distances from here on have one bias (Raffel et al. 2020, section 2.1)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """``layers`` of either side; an expert takes ``capacity`` tokens of each sequence."""

    vocab_size: int
    positions: int
    width: int
    hidden: int
    layers: int
    heads: int
    experts: int
    capacity: int
    buckets: int = 32
    balance: float = 0.01

    @property
    def longest(self) -> None:
        """No length is too long: positions are relative."""


class Attention(nn.Module):
    """Without scale, as in T5; ``bias`` is added to the scores."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.head_size = sizes.width // sizes.heads
        self.q, self.k, self.v, self.o = (
            nn.Linear(sizes.width, sizes.width, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor, source: Tensor, bias: Tensor | None = None) -> Tensor:
        """``[batch, tokens, width]`` from a source of the same kind."""
        query, key, value = self._heads(self.q(x)), self._heads(self.k(source)), self.v(source)
        mixed = functional.scaled_dot_product_attention(
            query, key, self._heads(value), attn_mask=bias, scale=1.0
        )
        return self.o(mixed.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (-1, self.head_size)).transpose(1, 2)


class Dense(nn.Module):
    """A feed-forward part for all tokens; it has no auxiliary loss."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.up = nn.Linear(sizes.width, sizes.hidden, bias=False)
        self.down = nn.Linear(sizes.hidden, sizes.width, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """``[batch, tokens, width]``."""
        return self.down(torch.relu(self.up(x))), None


class Switch(nn.Module):
    """Experts, and the router that sends each token to one."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.capacity = sizes.capacity
        self.router = nn.Linear(sizes.width, sizes.experts, bias=False)
        self.up = nn.Parameter(torch.empty(sizes.experts, sizes.width, sizes.hidden))
        self.down = nn.Parameter(torch.empty(sizes.experts, sizes.hidden, sizes.width))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``[batch, tokens, width]``, and the auxiliary loss of each sequence ``[batch]``."""
        share = torch.softmax(self.router(x).float(), dim=-1)
        gate, chosen = share.max(dim=-1)
        taken = functional.one_hot(chosen, share.shape[-1])
        places = self._places(taken).to(x.dtype)
        routed = torch.einsum("bsec,bsd->becd", places, x)
        hidden = torch.relu(torch.einsum("becd,edf->becf", routed, self.up))
        made = torch.einsum("becf,efd->becd", hidden, self.down)
        weighed = places * gate.to(x.dtype)[..., None, None]
        balance = share.shape[-1] * (taken.to(share.dtype).mean(1) * share.mean(1)).sum(-1)
        return torch.einsum("bsec,becd->bsd", weighed, made), balance

    def _places(self, taken: Tensor) -> Tensor:
        """One where a token has this place of this expert, ``[batch, tokens, experts, places]``."""
        place = torch.cumsum(taken, dim=1) * taken - 1
        kept = (place >= 0) & (place < self.capacity)
        return (
            functional.one_hot(place.clamp(0, self.capacity - 1), self.capacity) * kept[..., None]
        )


class Layer(nn.Module):
    """Attention, attention to the encoder where there is one, and a feed-forward part."""

    def __init__(self, sizes: Sizes, *, sparse: bool, decodes: bool):
        super().__init__()
        self.norms = nn.ModuleList(
            nn.RMSNorm(sizes.width, eps=_EPSILON) for _ in range(2 + decodes)
        )
        self.attention = Attention(sizes)
        self.cross = Attention(sizes) if decodes else None
        self.mlp = Switch(sizes) if sparse else Dense(sizes)

    def forward(
        self, x: Tensor, bias: Tensor, encoded: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """``[batch, tokens, width]``, and the auxiliary loss if there are experts."""
        normed = self.norms[0](x)
        x = x + self.attention(normed, normed, bias)
        if self.cross is not None and encoded is not None:
            x = x + self.cross(self.norms[1](x), encoded)
        made, balance = self.mlp(self.norms[-1](x))
        return x + made, balance


class Side(nn.Module):
    """Encoder or decoder."""

    def __init__(self, sizes: Sizes, *, decodes: bool):
        super().__init__()
        self.decodes, self.buckets = decodes, sizes.buckets
        self.bias = nn.Embedding(sizes.buckets, sizes.heads)
        self.layers = nn.ModuleList(
            Layer(sizes, sparse=n % 2 == 1, decodes=decodes) for n in range(sizes.layers)
        )
        self.norm = nn.RMSNorm(sizes.width, eps=_EPSILON)

    def forward(self, x: Tensor, encoded: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
        """``[batch, tokens, width]``, and the auxiliary losses."""
        bias, losses = self._bias(x), []
        for layer in self.layers:
            x, balance = layer(x, bias, encoded)
            losses += [] if balance is None else [balance]
        return self.norm(x), losses

    def _bias(self, x: Tensor) -> Tensor:
        """``[1, heads, tokens, tokens]``: by distance; nothing comes from behind in a decoder."""
        numbers = torch.arange(x.shape[1], device=x.device)
        ahead = numbers[None, :] - numbers[:, None]
        bias = self.bias(bucket(ahead, self.buckets, both=not self.decodes))
        bias = bias.permute(2, 0, 1).unsqueeze(0)
        return bias.masked_fill(ahead > 0, -math.inf) if self.decodes else bias


def bucket(ahead: Tensor, count: int, *, both: bool) -> Tensor:
    """The bucket of each distance: exact while small, then by its logarithm.

    Args:
        ahead: how far the key is ahead of the query.
        both: whether there are buckets for keys ahead too.
    """
    first = torch.zeros_like(ahead)
    if both:
        count //= 2
        first = (ahead > 0).to(ahead.dtype) * count
    distance = ahead.abs() if both else (-ahead).clamp_min(0)
    exact = count // 2
    scale = (count - exact) / math.log(_FURTHEST / exact)
    far = exact + (torch.log(distance.clamp_min(1).float() / exact) * scale).to(ahead.dtype)
    return first + torch.where(distance < exact, distance, far.clamp_max(count - 1))


class Model(nn.Module):
    """Returns the loss; the head has the weight of the table of tokens."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.balance, self.scale = sizes.balance, sizes.width**-0.5
        self.tokens = nn.Embedding(sizes.vocab_size, sizes.width)
        self.encoder = Side(sizes, decodes=False)
        self.decoder = Side(sizes, decodes=True)

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor, labels: Tensor) -> Tensor:
        """All ``[batch, tokens]``."""
        encoded, balance = self.encoder(self.tokens(input_ids))
        decoded, more = self.decoder(self.tokens(decoder_input_ids), encoded)
        logits = functional.linear(decoded * self.scale, self.tokens.weight).float()
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return loss + self.balance * torch.stack(balance + more).sum(0).mean()
