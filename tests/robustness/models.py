"""Factories for ``pkg.mod:factory``, good and bad."""

from __future__ import annotations

import torch
from torch import nn


class Regressor(nn.Module):
    """An MLP that returns its loss."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return nn.functional.mse_loss(x, y)


def _regressor(width: int, depth: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    inputs = {"x": torch.zeros(2, width), "y": torch.zeros(2, width)}
    return Regressor(width, depth), inputs


def small() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    return _regressor(8, 2)


def wider() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    return _regressor(16, 2)


def huge() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """32 billion parameters, on ``meta``."""
    with torch.device("meta"):
        return _regressor(1 << 16, 8)


def raises() -> nn.Module:
    raise RuntimeError("weights not found\nin the second line")


def returns_text() -> str:
    return "a model"
