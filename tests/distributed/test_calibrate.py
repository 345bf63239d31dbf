"""``autoplan calibrate`` on processes of this machine, and a pair of predicted against measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from autoplan.cli import main
from benchmarks.predicted.measure import measured
from benchmarks.predicted.pairs import PAIRS
from hardware_profiles.load import load, load_facts
from hardware_profiles.schema import facts_of

FACTORY = f"{__name__}:factory"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(self.down(self.up(x).relu()), y)


def factory():
    return Net(), {"x": torch.zeros(2, 32), "y": torch.zeros(2, 32)}


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    given = [
        "plan", FACTORY, "--cluster", "cpu-gloo", "--gpus-per-node", "2", "--global-batch", "8",
        "--precision", "fp32", "--pin", "dp=2", "--pin", "zero=0", "-o", str(tmp_path / "p.json"),
    ]  # fmt: skip
    assert main(given) == 0
    return tmp_path / "p.json"


def test_the_command_prints_both_and_writes_the_corrections(plan_file, tmp_path, capsys):
    made = tmp_path / "mine.toml"
    given = ["calibrate", str(plan_file), "--model", FACTORY, "--steps", "3"]
    assert main([*given, "-o", str(made)]) == 0
    printed = capsys.readouterr().out
    assert "measured, rank 1" in printed
    assert "predicted: all_reduce dp" in printed
    changed = [fact for _, fact in facts_of(load_facts(made)) if fact.provenance == "fitted"]
    assert changed
    assert all(fact.source.startswith("calibrated 2") for fact in changed)
    assert load(made).digest != load("cpu-gloo").digest
    assert main([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["measured"]["ranks"]) == 2
    assert set(found["factors"]["factors"]) | set(found["factors"]["refused"]) == {
        "compute", "optimizer", "messages",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["mine.txt", "no/folder.toml"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(name, capsys):
    assert main(["calibrate", "none.json", "-o", name]) == 1
    assert f"-o {name}: " in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("pair", [PAIRS[2], PAIRS[10]], ids=lambda pair: pair.name)
def test_a_pair_is_measured_and_its_bytes_are_those_predicted(pair):
    row = measured(pair, "cpu-gloo", 3)
    assert len(row.measured_bytes) == pair.ranks
    assert abs(row.bytes_error) < 0.03
    assert row.low_s <= row.measured_s <= row.high_s
