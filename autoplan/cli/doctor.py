"""``autoplan doctor``: what to know about a model before it is planned."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import Annotated

import typer

from autoplan.cli import plan_options
from autoplan.cli.options import shapes

FOUND = 2


def doctor(
    model: plan_options.Model,
    *,
    seq_len: plan_options.SeqLen = None,
    inputs: plan_options.Inputs = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of the report.")
    ] = False,
) -> None:
    """Look a model over before it is planned.

    What stops, limits or costs, by line of source; exit code 2 if any.
    """
    from autoplan import checkup
    from autoplan.cli.progress import logs_held

    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    with logs_held():
        found = checkup.doctor(model, seq_len=seq_len, inputs=shapes(inputs or ()))
    if as_json:
        print(json.dumps({"ok": found.ok, **asdict(found)}, indent=2))
    else:
        from autoplan.report.doctor import print_findings

        print_findings(found)
    if not found.ok:
        raise typer.Exit(FOUND)
