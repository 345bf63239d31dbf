"""Families by ways to train: a slice on every run, all of it and long curves with ``slow``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import pytest
import torch

from tests.parity.matrix.cells import Cell, run_family, share
from tests.parity.matrix.curves import RTOL, run_curves
from tests.parity.matrix.families import FAMILIES
from tests.parity.matrix.simulated import DP_IS_NOT_SIMULATED, MESHES, simulate_family
from tests.parity.matrix.table import matrix_lines, summary
from tests.parity.matrix.ways import WAYS, plan_of

UNCUT = ("LSTM", "DLRM, integer features")
"""Without layers to cut between."""

SLICE = (
    "MLP", "LoRA on a frozen GPT", "integers and bools across layers", "GPT, dropout", "LSTM",
    "GPT, tied",
)  # fmt: skip
"""Families of which no other test draws placements, and two of the rest."""

NO_STAGES = r"1f1b with 1 stages on 2 ranks .* multiple of the ranks as stages"


def refusals(family: str) -> dict[str, str]:
    """What autoplan must say, by the way that it refuses."""
    if family not in UNCUT:
        return {}
    return {name: NO_STAGES for name, way in WAYS.items() if way.pp > 1}


def check(cells: Mapping[str, Cell], refused: Mapping[str, str]) -> None:
    """That cells are equal to one device, but for those that are refused for these reasons."""
    assert {name for name, cell in cells.items() if cell.refused} == cells.keys() & refused.keys()
    for name, cell in cells.items():
        if name in refused:
            assert re.search(refused[name], cell.refused), (name, cell.refused)
        else:
            assert cell.ok, (name, cell)


def check_simulated(family: str, names: list[str]) -> None:
    refused = {}
    for name in names:
        if FAMILIES[family].norms_the_batch and MESHES[name].dp > 1:
            refused[name] = DP_IS_NOT_SIMULATED
        elif family in UNCUT and MESHES[name].stages:
            refused[name] = "stages of a model that can be cut into 1"
    check(simulate_family(family, names), refused)


@pytest.mark.parametrize(("number", "family"), list(enumerate(SLICE)))
def test_a_simulated_slice(number, family):
    check_simulated(family, [list(MESHES)[number % len(MESHES)]])


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("GPT, tied", ["pp2 x dp2 x tp2, ZeRO 1"]),
        ("LoRA on a frozen GPT", ["dp2 x tp2, ZeRO 3", "pp2 x tp2"]),
        ("LSTM", ["one device", "pp2"]),
    ],
)
def test_a_slice_on_processes(family, names):
    check(run_family(family, names), refusals(family))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_all_simulated(family):
    check_simulated(family, list(MESHES))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", FAMILIES)
def test_all_on_processes(family):
    check(run_family(family, list(WAYS)), refusals(family))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_steps_with_dropout():
    for name, curve in run_curves().items():
        assert curve.furthest <= RTOL, name
        assert curve.alone[-1] < 0.9 * curve.alone[0], "nothing was learnt"


def test_differences_are_shares_of_each_tensor_and_of_the_largest():
    one, small = torch.tensor([4.0, -8.0]), torch.tensor([0.0, 0.001])
    expected = {"one": one, "small": small}
    got = {"one": one + 0.8, "small": small}
    assert share(got, expected, torch.float32) == pytest.approx(0.8 / (8 + 0.008))
    got = {"small": small + 0.0018}
    assert share(got, expected, torch.float32) == pytest.approx(0.0018 / (0.001 + 0.008))
    assert share({"one": one * torch.nan}, expected, torch.float32) == math.inf


def test_the_table_shows_what_is_refused_and_wrong():
    allowed = {"allowed": 1e-9, "allowed_loss": 1e-9}
    matrix = {
        "a": {"tp2": Cell(gradients=3e-16, same_bits=True, **allowed), "pp2": Cell(refused="why")},
        "b": {"tp2": Cell(loss=2e-3, **allowed), "pp2": Cell(weights=math.inf, **allowed)},
    }
    lines = matrix_lines(matrix)
    assert lines[2] == "| tp2 | 3e-16= | **2e-03 WRONG** |"
    assert lines[3] == "| pp2 | refused a | **inf WRONG** |"
    assert lines[-1] == "- refused a: why"
    assert summary(matrix).startswith("4 cells: 1 equal one device, 1 refused, 2 wrong")


@pytest.mark.parametrize("name", WAYS)
def test_ways_are_what_they_say(name):
    way = WAYS[name]
    plan = plan_of("GPT", way)
    assert plan.mesh.world_size == way.world_size
    assert len(plan.stages) == way.stages
    assert {stage.rank for stage in plan.stages} == (set(range(way.pp)) if way.pp > 1 else set())
    assert any(region.recomputed_operators for region in plan.regions) == way.operators_again
    assert any(region.recomputed for region in plan.regions) == way.blocks_again
    split = {label for region in plan.regions for label in region.operators.values()}
    assert bool(split - {"replicate"}) == (way.tp > 1)
