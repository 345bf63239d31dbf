"""Models with BatchNorm, over rows and over places of each sample."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.parity.models import initialise


class NormedLayer(nn.Module):
    def __init__(self, width: int, momentum: float | None = 0.1, affine: bool = True) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm = nn.BatchNorm1d(2 * width, momentum=momentum, affine=affine)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.norm(self.up(x))))


class NormedMLP(nn.Module):
    """Four equal layers, and one without weights and momentum."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(NormedLayer(16) for _ in range(4))
        self.last = NormedLayer(16, momentum=None, affine=False)
        self.out = nn.Linear(16, 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return F.mse_loss(self.out(self.last(x)), y)


class NormedPlaces(nn.Module):
    """Channels by places, with statistics that nothing keeps, and dropout between."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm1d(8), nn.BatchNorm1d(8, track_running_stats=False)
        self.mix = nn.Linear(16, 16)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.mix(self.first(x.unflatten(1, (8, 2)).repeat(1, 1, 8)))
        return F.mse_loss(self.second(self.drop(x)).mean(2), y)


MODELS = {"mlp": NormedMLP, "places": NormedPlaces}


def model_of(name: str) -> nn.Module:
    return initialise(MODELS[name](), torch.float64).train()


def batch_of(rows: int) -> dict[str, Tensor]:
    float64 = torch.float64
    return {"x": torch.randn(rows, 16, dtype=float64), "y": torch.randn(rows, 8, dtype=float64)}
