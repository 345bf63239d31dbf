"""The decoder that all of them train, written so that every recipe of PyTorch applies to it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, LAYERS, VOCAB, LENGTH = 256, 8, 4, 512, 32
GLOBAL_BATCH = 8
LEARNING_RATE = 1e-3

Batch = dict[str, Tensor]


class Attention(nn.Module):
    """Causal attention; how many heads there are follows from the projections' own width."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        q, k, v = (
            project(x).view(rows, length, -1, WIDTH // HEADS).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(mixed.transpose(1, 2).reshape(rows, length, -1))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    """Returns the mean loss of its tokens, given ``labels``; logits without."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions.weight
        for layer in self.layers:
            x = layer(x)
        return mean_loss(self.head(self.norm(x)), labels)


class Stage(nn.Module):
    """Layers of a whole model that one rank of a pipeline runs; the ends have what is beside."""

    def __init__(self, whole: GPT, rank: int, ranks: int) -> None:
        super().__init__()
        share = LAYERS // ranks
        self.layers = whole.layers[rank * share : (rank + 1) * share]
        self.is_first, self.is_last = rank == 0, rank == ranks - 1
        if self.is_first:
            self.tokens, self.positions = whole.tokens, whole.positions
        if self.is_last:
            self.norm, self.head = whole.norm, whole.head

    def forward(self, x: Tensor) -> Tensor:
        if self.is_first:
            x = self.tokens(x) + self.positions.weight
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)) if self.is_last else x


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def build() -> GPT:
    """The same weights on every rank."""
    torch.manual_seed(0)
    return GPT()


def batch() -> Batch:
    """The global batch, the same on every rank."""
    draw = torch.Generator().manual_seed(1)
    ids, labels = (torch.randint(VOCAB, (GLOBAL_BATCH, LENGTH), generator=draw) for _ in range(2))
    return {"ids": ids, "labels": labels}
