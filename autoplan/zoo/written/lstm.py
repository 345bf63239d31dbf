"""The LSTM language model of Zaremba, Sutskever and Vinyals 2014: dropout between layers only.

Each sample starts from zeros, where the original carries the state over from batch to batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from autoplan.zoo.plain.layers import next_token_loss


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """``positions`` is the length of training; any other will do."""

    vocab_size: int
    width: int
    layers: int
    positions: int
    dropout: float

    @property
    def longest(self) -> None:
        """No length is too long."""


class Model(nn.Module):
    """Returns the loss."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        width = sizes.width
        self.embedding = nn.Embedding(sizes.vocab_size, width)
        self.layers = nn.ModuleList(
            nn.LSTM(width, width, batch_first=True) for _ in range(sizes.layers)
        )
        self.dropout = nn.Dropout(sizes.dropout)
        self.head = nn.Linear(width, sizes.vocab_size)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """Both ``[batch, tokens]``."""
        hidden = self.dropout(self.embedding(input_ids))
        for layer in self.layers:
            hidden = self.dropout(layer(hidden)[0])
        return next_token_loss(self.head(hidden), labels)
