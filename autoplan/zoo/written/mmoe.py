"""Multi-gate mixture of experts (Ma et al. 2018): each task weighs all experts by its own gate.

Features are read from tables and joined; all experts see all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """``features`` tables of ``rows`` by ``width``; experts have one hidden layer."""

    features: int
    rows: int
    width: int
    experts: int
    hidden: int
    outputs: int
    tasks: int
    tower: int


def inputs(sizes: Sizes) -> dict[str, Tensor]:
    """Two samples on the meta device."""
    return {
        "features": torch.empty(2, sizes.features, dtype=torch.int64, device="meta"),
        "labels": torch.empty(2, sizes.tasks, device="meta"),
    }


class Experts(nn.Module):
    """All experts' layers, one weight each."""

    def __init__(self, count: int, inputs: int, hidden: int, outputs: int):
        super().__init__()
        self.up = nn.Parameter(torch.empty(count, inputs, hidden))
        self.up_bias = nn.Parameter(torch.empty(count, hidden))
        self.down = nn.Parameter(torch.empty(count, hidden, outputs))
        self.down_bias = nn.Parameter(torch.empty(count, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, inputs]`` to ``[batch, experts, outputs]``."""
        hidden = torch.relu(torch.einsum("bi,eih->beh", x, self.up) + self.up_bias)
        return torch.relu(torch.einsum("beh,eho->beo", hidden, self.down) + self.down_bias)


class Task(nn.Module):
    """The gate of one task and its tower."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.gate = nn.Linear(sizes.features * sizes.width, sizes.experts, bias=False)
        self.tower = nn.Linear(sizes.outputs, sizes.tower)
        self.head = nn.Linear(sizes.tower, 1)

    def forward(self, x: Tensor, experts: Tensor) -> Tensor:
        """A score ``[batch, 1]`` from ``[batch, inputs]`` and ``[batch, experts, outputs]``."""
        share = torch.softmax(self.gate(x), dim=-1)
        mixed = torch.einsum("beo,be->bo", experts, share)
        return self.head(torch.relu(self.tower(mixed)))


class Model(nn.Module):
    """Returns the loss: the mean over tasks of binary cross entropy."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.tables = nn.ModuleList(
            nn.Embedding(sizes.rows, sizes.width) for _ in range(sizes.features)
        )
        width = sizes.features * sizes.width
        self.experts = Experts(sizes.experts, width, sizes.hidden, sizes.outputs)
        self.tasks = nn.ModuleList(Task(sizes) for _ in range(sizes.tasks))

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """Row numbers ``[batch, features]`` and 0 or 1 ``[batch, tasks]``."""
        x = torch.cat([table(features[:, n]) for n, table in enumerate(self.tables)], dim=-1)
        experts = self.experts(x)
        scores = torch.cat([task(x, experts) for task in self.tasks], dim=-1)
        return functional.binary_cross_entropy_with_logits(scores, labels)
