"""The training script among the examples: stopped and resumed, it trains as if never stopped."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.distributed.harness import run_ranks

SCRIPT = Path(__file__).parent.parent.parent / "examples" / "06_train.py"
STEPS, STOPPED_AT, SAVED_AT = 10, 6, 4

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
    return run_ranks(_train, 1)[0][1]


@pytest.mark.parametrize(
    ("ranks", "pins", "mesh"),
    [
        (2, ["tp=2"], (1, 1, 2)),
        pytest.param(4, ["tp=2", "dp=2", "zero=3"], (1, 2, 2), marks=pytest.mark.slow),
        pytest.param(1, [], (1, 1, 1), marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_under_another_plan(
    uninterrupted: list[float],
    tmp_path: Path,
    ranks: int,
    pins: list[str],
    mesh: tuple[int, int, int],
) -> None:
    options = ["--checkpoint", str(tmp_path / "run")]
    stopped = ["--stop-at", str(STOPPED_AT), "--pin", "pp=2"]
    first = run_ranks(_train, 2, *options, *stopped)[0][1]
    results = run_ranks(_train, ranks, *options, *(word for pin in pins for word in ("--pin", pin)))
    found, second = results[0]
    assert all(result == results[0] for result in results)
    assert found == mesh
    assert (len(uninterrupted), len(first), len(second)) == (STEPS, STOPPED_AT, STEPS - SAVED_AT)
    assert first == pytest.approx(uninterrupted[:STOPPED_AT], rel=TOLERANCE)
    assert second == pytest.approx(uninterrupted[SAVED_AT:], rel=TOLERANCE)
    assert uninterrupted[-1] < uninterrupted[0]
