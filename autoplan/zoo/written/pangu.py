"""PanGu-alpha (Zeng et al. 2021, section 3.1): a GPT whose last layer asks by position.

In the last, the query layer, queries are made from a table of positions instead of the hidden
state; keys and values are as ever. The head shares its weight with the table of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from autoplan.zoo.plain.layers import causal_attention, next_token_loss, positions_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """``layers`` counts the query layer."""

    vocab_size: int
    positions: int
    width: int
    layers: int
    heads: int

    @property
    def longest(self) -> int:
        """Tokens that have a position."""
        return self.positions


class Layer(nn.Module):
    """Attention and a feed-forward part four times as wide, each behind a norm."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        width = sizes.width
        self.head_size = width // sizes.heads
        self.attention_norm = nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor, asked: Tensor | None = None) -> Tensor:
        """``[batch, tokens, width]``.

        Args:
            asked: what queries are made from, of the same shape; None: what all else is.
        """
        normed = self.attention_norm(hidden)
        query = self._heads(self.query(normed if asked is None else asked))
        key, value = self._heads(self.key(normed)), self._heads(self.value(normed))
        mixed = causal_attention(query, key, value, scale=self.head_size**-0.5)
        hidden = hidden + self.out(mixed)
        return hidden + self.down(functional.gelu(self.up(self.mlp_norm(hidden))))

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.head_size).transpose(1, 2)


class Model(nn.Module):
    """Returns the loss."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocab_size, sizes.width)
        self.positions = nn.Embedding(sizes.positions, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers - 1))
        self.asked_positions = nn.Embedding(sizes.positions, sizes.width)
        self.query_layer = Layer(sizes)
        self.norm = nn.LayerNorm(sizes.width)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """Both ``[batch, tokens]``."""
        embedded = self.tokens(input_ids)
        positions = positions_of(embedded)
        hidden = embedded + self.positions(positions)
        for layer in self.layers:
            hidden = layer(hidden)
        asked = self.asked_positions(positions).expand_as(hidden)
        hidden = self.norm(self.query_layer(hidden, asked))
        return next_token_loss(functional.linear(hidden, self.tokens.weight), labels)
