"""Small models of every family that the matrix has, in float64, each with a global batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph
from tests.families import random_batch, real, tiny
from tests.parity.cases import Case
from tests.parity.dropping import DroppingGPT, dropping_bert
from tests.parity.models import GPT, Layer, initialise, language_batch, llama

ROWS = 8
"""Samples of a global batch."""

Batch = dict[str, Tensor]


class Rectified(nn.Module):
    """A perceptron of equal layers."""

    def __init__(self, layers: int = 4, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)
        )
        self.out = nn.Linear(width, 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return F.mse_loss(self.out(x), y)


class LowRank(nn.Module):
    """A frozen linear layer and a trainable correction of low rank (Hu et al. 2021)."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Linear(base.in_features, rank, bias=False)
        self.b = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2.0 * self.b(self.a(x))


def low_rank_gpt() -> nn.Module:
    """A frozen GPT of which queries, values and the first half of each MLP are corrected."""
    model = GPT().requires_grad_(False)
    for layer in model.layers:
        assert isinstance(layer, Layer)
        layer.attention.q, layer.attention.v = (
            LowRank(layer.attention.q),
            LowRank(layer.attention.v),
        )
        layer.up = LowRank(layer.up)
    return model


class Crossing(nn.Module):
    """Behind its layers it reads an integer and a bool of what went before them."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.kinds = nn.Embedding(32, 16), nn.Embedding(17, 16)
        self.layers = nn.ModuleList(Layer(16, 8) for _ in range(2))
        self.head = nn.Linear(16, 32)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        first = self.tokens(ids)
        positive = first > 0
        kind = positive.long().sum(-1)
        x = first
        for layer in self.layers:
            x = layer(x)
        x = torch.where(positive, x, first.detach()) + self.kinds(kind)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


@dataclass(frozen=True)
class Family:
    """How to build a model and draw a batch of it.

    Attributes:
        norms_the_batch: whether it takes statistics over the samples, so that the batch is one
            microbatch.
        own_operators: whether operators of autoplan stand for some of PyTorch, so that one device
            rounds otherwise (BatchNorm over ranks, and experts one after another).
    """

    build: Callable[[], nn.Module]
    draw: Callable[[], Batch]
    norms_the_batch: bool = False
    own_operators: bool = False


def _rows() -> Batch:
    return {
        "x": torch.randn(ROWS, 16, dtype=torch.float64),
        "y": torch.randn(ROWS, 8, dtype=torch.float64),
    }


def _named() -> Batch:
    batch = language_batch(ROWS)
    return {"input_ids": batch["ids"], "labels": batch["labels"]}


def _own(build: Callable[[], nn.Module], draw: Callable[[], Batch]) -> Family:
    return Family(lambda: initialise(build(), torch.float64).train(), draw)


def _tokens() -> Batch:
    return language_batch(ROWS)


def _preset(name: str, **kinds: bool) -> Family:
    return Family(
        lambda: real(name), lambda: random_batch(tiny(name), ROWS, torch.float64), **kinds
    )


FAMILIES = {
    "MLP": _own(Rectified, _rows),
    "GPT": _own(GPT, _tokens),
    "GPT, tied": _own(lambda: GPT(tied=True), _tokens),
    "Llama, grouped queries": _own(llama, _named),
    "BERT": _preset("bert-base"),
    "T5": _preset("t5-small"),
    "ViT": _preset("vit-b16"),
    "ResNet, BatchNorm": _preset("resnet50", norms_the_batch=True, own_operators=True),
    "LSTM": _preset("lstm-66m"),
    "LoRA on a frozen GPT": _own(low_rank_gpt, _tokens),
    "Whisper, dict of three inputs": _preset("whisper-small"),
    "DLRM, integer features": _preset("dlrm-24b"),
    "integers and bools across layers": _own(Crossing, _tokens),
    "GPT, dropout": _own(DroppingGPT, _tokens),
    "BERT, dropout": _own(dropping_bert, _named),
    "Mixtral, experts": _preset("mixtral-8x7b", own_operators=True),
    "Mamba-2": _preset("mamba2-130m"),
}


@cache
def case(family: str) -> Case:
    """The model of this family, its batch, and the graph at that batch."""
    found = FAMILIES[family]
    torch.manual_seed(1)
    batch = found.draw()
    return Case(found.build(), batch, graph_of(family).at_batch(ROWS))


@cache
def graph_of(family: str) -> OpGraph:
    """The graph as it was captured, of any batch."""
    torch.manual_seed(1)
    return capture(FAMILIES[family].build(), FAMILIES[family].draw())
