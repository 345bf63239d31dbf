"""``autoplan compare``: two plan files side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object instead of the comparison.")
]


def compare(
    first: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    second: Annotated[Path, typer.Argument(metavar="PLAN", help="The one to compare with it.")],
    *,
    as_json: Json = False,
) -> None:
    """Compare two saved plans.

    What differs, in decisions, time and memory.
    """
    from autoplan import plan_io
    from autoplan.report.compare import print_comparison, summary

    plans = plan_io.load(first), plan_io.load(second)
    labels = _labels(first, second)
    if as_json:
        print(json.dumps(summary(*plans, labels), indent=2, allow_nan=False))
        return
    print_comparison(*plans, labels)


def _labels(first: Path, second: Path) -> tuple[str, str]:
    """The shortest names by which the two files are told apart."""
    for names in ((first.stem, second.stem), (first.name, second.name)):
        if names[0] != names[1]:
            return names
    return str(first), str(second)
