"""Whatever is found prints by one function, as its own printer prints it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import autoplan
from autoplan.calibration.calibrated import Calibrated
from autoplan.calibration.factors import Factors
from autoplan.findings import Findings
from autoplan.measurement import Spread, StepMeasurement
from autoplan.rehearsal import Rehearsal
from autoplan.report.calibration import print_calibration
from autoplan.report.doctor import print_findings
from autoplan.report.rehearsal import print_rehearsal
from autoplan.report.sizing import print_sizing
from autoplan.report.sweep import print_sweep
from autoplan.report.text import print_report
from autoplan.report.verification import print_verification
from autoplan.sizing.goal import Goal
from autoplan.sizing.sizes import Sizing
from autoplan.sizing.sweeps import Point, Sweep
from autoplan.verdict import Verification
from hardware_profiles.load import load_facts
from tests.unit.sample_timed import TIMED

CALIBRATED = Calibrated(
    plan=TIMED,
    measured=StepMeasurement(steps=3, step_s=Spread(median_s=2.0, low_s=1.5, high_s=2.5), ranks=()),
    factors=Factors(factors={"compute": 1.5}, refused={}),
    profile=load_facts("cpu-gloo"),
)

FOUND: list[tuple[Any, Callable[[Any], None]]] = [
    (TIMED, print_report),
    (Findings(model="m", operators=3, findings=()), print_findings),
    (Rehearsal(mesh={"pp": 1, "dp": 1, "tp": 1}, orders="", parts=()), print_rehearsal),
    (Verification(ranks=2, precision="float64", differences=()), print_verification),
    (Sweep(over="nodes", points=(Point(job=TIMED.job, plan=TIMED),)), print_sweep),
    (Sizing(goal=Goal(tokens=1e9, days=1), job=TIMED.job, clusters=()), print_sizing),
    (CALIBRATED, print_calibration),
]


@pytest.mark.parametrize(("found", "own"), FOUND, ids=lambda value: type(value).__name__)
def test_each_kind_prints_as_its_own(
    found: Any, own: Callable[[Any], None], capsys: pytest.CaptureFixture
) -> None:
    own(found)
    expected = capsys.readouterr().out
    assert expected.strip()
    autoplan.print_report(found)
    assert capsys.readouterr().out == expected


def test_what_no_function_found_is_refused() -> None:
    with pytest.raises(TypeError, match="print_report prints no str"):
        autoplan.print_report("a plan")  # pyright: ignore[reportArgumentType]
