"""``autoplan verify``: a plan's program against the model on one device, on this machine."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

DIFFERS = 1


def verify(
    path: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    *,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="The plan's model, if it is pkg.mod:factory."),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(metavar="N", help="Processes; default: two of every axis of the plan."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of the report.")
    ] = False,
) -> None:
    """Run a plan's program and compare with one device.

    On processes here; what is too large is cut down first.
    """
    from autoplan import api
    from autoplan.cli.progress import ProgressDisplay, logs_held

    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    with ProgressDisplay() as progress, logs_held():
        found = api.verify(path, model, ranks=ranks, progress=progress)
    if as_json:
        print(json.dumps({"ok": found.ok, **asdict(found)}, indent=2))
    else:
        from autoplan.report.verification import print_verification

        print_verification(found)
    if not found.ok:
        raise typer.Exit(DIFFERS)
