"""Prints whatever was found, by what it is: a plan, an explanation, sizes, findings and more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoplan.plan import Plan

if TYPE_CHECKING:
    from autoplan.explanation import Explanation
    from autoplan.findings import Findings
    from autoplan.rehearsal import Rehearsal
    from autoplan.sizing.sizes import Sizing
    from autoplan.sizing.sweeps import Sweep
    from autoplan.verdict import Verification


def print_report(
    found: Plan | Explanation | Verification | Rehearsal | Findings | Sizing | Sweep,
) -> None:
    """Prints what any function of autoplan has found, on stdout, as its command does."""
    from autoplan.explanation import Explanation
    from autoplan.findings import Findings
    from autoplan.rehearsal import Rehearsal
    from autoplan.report import doctor, explanation, rehearsal, text, verification
    from autoplan.verdict import Verification

    if isinstance(found, Plan):
        text.print_report(found)
    elif isinstance(found, Rehearsal):
        rehearsal.print_rehearsal(found)
    elif isinstance(found, Findings):
        doctor.print_findings(found)
    elif isinstance(found, Verification):
        verification.print_verification(found)
    elif isinstance(found, Explanation):
        explanation.print_explanation(found)
    else:
        _print_sizes(found)


def _print_sizes(found: Sizing | Sweep) -> None:
    from autoplan.report.sizing import print_sizing
    from autoplan.report.sweep import print_sweep
    from autoplan.sizing.sizes import Sizing

    if isinstance(found, Sizing):
        print_sizing(found)
    else:
        print_sweep(found)
