"""``autoplan explain``: why a plan won, and what another one would cost."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from autoplan.cli.options import key_values


def explain(
    path: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    *,
    why_not: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Compare with this pin, as of plan, or 'place:GLOB=Shard(0)' (repeatable).",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="The plan's model, if it is pkg.mod:factory."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of the report.")
    ] = False,
) -> None:
    """Explain a plan.

    What binds, what memory is worth, why not others.
    """
    from autoplan import api
    from autoplan.cli.progress import ProgressDisplay, logs_held

    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    pins = key_values("--why-not", why_not or ())
    with ProgressDisplay() as progress, logs_held():
        found = api.explain(path, model, why_not=pins, progress=progress)
    if as_json:
        print(json.dumps(asdict(found), indent=2, allow_nan=False))
        return
    api.print_report(found)
