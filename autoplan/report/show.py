"""Prints whatever was found, by what it is: a plan, an explanation, sizes, findings and more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoplan.plan import Plan

if TYPE_CHECKING:
    from autoplan.calibration.calibrated import Calibrated
    from autoplan.explanation import Explanation
    from autoplan.findings import Findings
    from autoplan.rehearsal import Rehearsal
    from autoplan.sizing.sizes import Sizing
    from autoplan.sizing.sweeps import Sweep
    from autoplan.verdict import Verification


def print_report(
    found: Plan | Explanation | Verification | Rehearsal | Findings | Sizing | Sweep | Calibrated,
) -> None:
    """Prints what any function of autoplan has found, on stdout, as its command does.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(found, Plan):
        from autoplan.report.text import print_report as print_plan

        print_plan(found)
    else:
        _print_findings(found)


def _print_findings(
    found: Explanation | Verification | Rehearsal | Findings | Sizing | Sweep | Calibrated,
) -> None:
    from autoplan.explanation import Explanation
    from autoplan.findings import Findings
    from autoplan.rehearsal import Rehearsal
    from autoplan.report import doctor, explanation, rehearsal, verification
    from autoplan.verdict import Verification

    if isinstance(found, Rehearsal):
        rehearsal.print_rehearsal(found)
    elif isinstance(found, Findings):
        doctor.print_findings(found)
    elif isinstance(found, Verification):
        verification.print_verification(found)
    elif isinstance(found, Explanation):
        explanation.print_explanation(found)
    else:
        _print_figures(found)


def _print_figures(found: Sizing | Sweep | Calibrated) -> None:
    from autoplan.calibration.calibrated import Calibrated
    from autoplan.report.calibration import print_calibration
    from autoplan.report.sizing import print_sizing
    from autoplan.report.sweep import print_sweep
    from autoplan.sizing.sizes import Sizing
    from autoplan.sizing.sweeps import Sweep

    if isinstance(found, Sizing):
        print_sizing(found)
    elif isinstance(found, Sweep):
        print_sweep(found)
    elif isinstance(found, Calibrated):
        print_calibration(found)
    else:
        raise TypeError(f"print_report prints no {type(found).__name__}")
