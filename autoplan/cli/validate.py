"""``autoplan validate``: predictions against published measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from autoplan.errors import PlanError


def validate(
    path: Annotated[Path, typer.Argument(metavar="CSV", help="Published measurements, one a row.")],
    *,
    only: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME", help="This set only (repeatable).")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of the report.")
    ] = False,
) -> None:
    """Compare predictions with published measurements."""
    from autoplan.cli.progress import ProgressDisplay
    from autoplan.validation.predict import predictions_of
    from autoplan.validation.published.rows import read_rows

    measured = read_rows(path)
    rows = measured.rows
    if only:
        known = list(dict.fromkeys(row.set for row in rows))
        missing = [name for name in only if name not in known]
        if missing:
            raise PlanError(f"--set {missing[0]}: {path} has the sets {', '.join(known)}")
        rows = tuple(row for row in rows if row.set in only)
    with ProgressDisplay() as progress:
        predictions = predictions_of(rows, progress=progress)
    if as_json:
        from autoplan.report.validation_summary import summary

        print(json.dumps(summary(predictions), indent=2, allow_nan=False))
        return
    from autoplan.report.validation import print_validation

    print_validation(predictions, measured.notes)
