"""The training script among the examples: stopped and resumed, it trains as if never stopped."""

from __future__ import annotations

import math
import runpy
from pathlib import Path

import pytest

from tests.distributed.harness import run_ranks

SCRIPT = Path(__file__).parent.parent.parent / "examples" / "06_train.py"
STEPS, STOPPED_AT, SAVED_AT = 6, 3, 2

# Adam magnifies the rounding of float32 from step to step.
TOLERANCE = 1e-4


def _train(rank: int, *options: str) -> tuple[tuple[int, int, int], list[float]]:
    """The degrees of the mesh, and the losses of the steps of one run."""
    example = runpy.run_path(str(SCRIPT))
    said: list[str] = []
    example["train"].__globals__["say"] = said.append
    losses = example["train"](
        example["parse"](["--steps", str(STEPS), "--save-every", str(SAVED_AT), *options])
    )
    words = said[0].split()
    return (int(words[1]), int(words[4]), int(words[7].rstrip(","))), losses


@pytest.fixture(scope="module")
def uninterrupted() -> list[float]:
    """On one process, without ranks; those of the tests below have its modules loaded."""
    return _train(0)[1]


def _assert_goes_on(
    folder: Path, uninterrupted: list[float], mesh: tuple[int, int, int], *pins: str
) -> None:
    """A run on the ranks of a mesh that begins at a checkpoint has the losses that are missing."""
    options = ["--checkpoint", str(folder), *(word for pin in pins for word in ("--pin", pin))]
    results = run_ranks(_train, math.prod(mesh), *options)
    found, losses = results[0]
    assert all(result == results[0] for result in results)
    assert found == mesh
    assert len(losses) == STEPS - SAVED_AT
    assert losses == pytest.approx(uninterrupted[SAVED_AT:], rel=TOLERANCE)


def test_a_run_goes_on_under_another_plan(uninterrupted: list[float], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    _, first = _train(0, "--stop-at", str(STOPPED_AT), "--checkpoint", str(folder))
    assert first == uninterrupted[:STOPPED_AT]
    assert uninterrupted[-1] < uninterrupted[0]
    _assert_goes_on(folder, uninterrupted, (1, 1, 2), "tp=2")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "pins"), [((1, 2, 2), ["tp=2", "dp=2", "zero=3"]), ((1, 1, 1), [])]
)
def test_a_pipeline_goes_on_under_another_plan(
    uninterrupted: list[float], tmp_path: Path, mesh: tuple[int, int, int], pins: list[str]
) -> None:
    folder = tmp_path / "run"
    options = ["--checkpoint", str(folder), "--stop-at", str(STOPPED_AT), "--pin", "pp=2"]
    first = run_ranks(_train, 2, *options)[0][1]
    assert first == pytest.approx(uninterrupted[:STOPPED_AT], rel=TOLERANCE)
    _assert_goes_on(folder, uninterrupted, mesh, *pins)
