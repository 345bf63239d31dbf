"""What reports say of the model's error is what the published runs give."""

from __future__ import annotations

import statistics
from collections import defaultdict
from pathlib import Path

import pytest

from autoplan.report.trust import STEP_ERRORS, within_error
from autoplan.validation.predict import predictions_of
from autoplan.validation.published.rows import read_rows
from hardware_profiles.load import load
from tests.unit.sample_timed import TIMED

RUNS = Path(__file__).parents[2] / "benchmarks" / "data" / "training.csv"


def test_errors_are_those_of_the_published_steps() -> None:
    """To accept a change of the models: write what is found into the table."""
    errors = defaultdict(list)
    for found in predictions_of(read_rows(RUNS).rows):
        counts = found.row.scored and found.error is not None
        if counts and found.setup is not None and not found.setup.layer_only:
            errors[load(found.setup.cluster).device.name].append(abs(found.error or 0.0))
    assert {name: len(each) for name, each in errors.items()} == {
        name: error.runs for name, error in STEP_ERRORS.items()
    }
    for name, each in errors.items():
        assert statistics.median(each) == pytest.approx(STEP_ERRORS[name].median, abs=5e-4)
        p90 = statistics.quantiles(each, n=10, method="inclusive")[-1]
        assert p90 == pytest.approx(STEP_ERRORS[name].p90, abs=5e-4)


def test_plans_within_the_error_fit_and_are_close() -> None:
    near = within_error(TIMED, STEP_ERRORS["H100-SXM5-80GB"])
    assert [other.name for other in near] == ["FSDP (ZeRO-3)"]
