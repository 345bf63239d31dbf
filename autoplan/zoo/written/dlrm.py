"""DLRM (Naumov et al. 2019): dense features and rows of large tables meet in products of pairs.

Every table is read at one row a sample, and has dense gradients. A table is split by its columns
or, where they divide, by its rows; whole tables are not dealt out to ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """The bottom part ends at the tables' width; the top part at one number."""

    dense: int
    rows: Sequence[int]
    width: int
    bottom: Sequence[int]
    top: Sequence[int]


def inputs(sizes: Sizes) -> dict[str, Tensor]:
    """Two samples on the meta device."""
    return {
        "dense": torch.empty(2, sizes.dense, device="meta"),
        "rows": torch.empty(2, len(sizes.rows), dtype=torch.int64, device="meta"),
        "labels": torch.empty(2, device="meta"),
    }


def perceptron(widths: Sequence[int], *, last: bool) -> nn.Sequential:
    """Linear layers with ReLU between them, and behind the ``last`` one too if asked."""
    parts: list[nn.Module] = []
    for inner, outer in pairwise(widths):
        parts += [nn.Linear(inner, outer), nn.ReLU()]
    return nn.Sequential(*(parts if last else parts[:-1]))


class Model(nn.Module):
    """Returns the loss: binary cross entropy."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        met = len(sizes.rows) + 1
        self.bottom = perceptron((sizes.dense, *sizes.bottom, sizes.width), last=True)
        self.tables = nn.ModuleList(nn.Embedding(rows, sizes.width) for rows in sizes.rows)
        pairs = met * (met - 1) // 2
        self.top = perceptron((sizes.width + pairs, *sizes.top, 1), last=False)

    def forward(self, dense: Tensor, rows: Tensor, labels: Tensor) -> Tensor:
        """``[batch, features]``, row numbers ``[batch, tables]`` and 0 or 1 ``[batch]``."""
        read = self.bottom(dense)
        features = torch.stack(
            [read, *(table(rows[:, n]) for n, table in enumerate(self.tables))], dim=1
        )
        products = torch.bmm(features, features.transpose(1, 2))
        first, second = torch.tril_indices(*products.shape[1:], offset=-1, device=dense.device)
        met = products[:, first, second]
        scores = self.top(torch.cat([read, met], dim=1)).squeeze(1)
        return functional.binary_cross_entropy_with_logits(scores, labels)
