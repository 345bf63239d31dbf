"""What an optimizer's step takes for each tensor, beside its bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import autoplan
from hardware_profiles.load import load, load_facts
from hardware_profiles.schema import Fact, ProfileFacts
from hardware_profiles.write import save

WIDTH, TENSORS = 8, 4
TENSOR_S, PIECE_S = 1e-3, 5e-3


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu()).square().mean()


def with_seconds(facts: ProfileFacts) -> ProfileFacts:
    stated = {"optimizer_tensor_s": TENSOR_S, "optimizer_piece_s": PIECE_S}
    device = {
        name: Fact(value=value, provenance="assumed", source="a test")
        for name, value in stated.items()
    }
    return facts.model_copy(update={"device": facts.device.model_copy(update=device)})


def optimizer_s(cluster: str, **pins: int | str) -> float:
    plan = autoplan.plan(
        Net(), {"x": torch.zeros(2, WIDTH)}, cluster=cluster, gpus_per_node=2, global_batch=8,
        precision="fp32", pins={"pp": 1, **pins},
    )  # fmt: skip
    return plan.estimate.optimizer_s


@pytest.mark.parametrize(
    ("pins", "each_s"),
    [({"dp": 2, "zero": 0}, TENSOR_S), ({"dp": 2, "zero": 3}, PIECE_S)],
    ids=["whole", "pieces"],
)
def test_each_tensor_takes_its_time(pins, each_s, tmp_path: Path):
    save(with_seconds(load_facts("cpu-gloo")), tmp_path / "mine.toml")
    more_s = optimizer_s(str(tmp_path / "mine.toml"), **pins) - optimizer_s("cpu-gloo", **pins)
    shipped = load("cpu-gloo").device
    known_s = (shipped.optimizer_piece_s if pins["zero"] else shipped.optimizer_tensor_s) or 0.0
    assert more_s == pytest.approx(TENSORS * (each_s - known_s))
