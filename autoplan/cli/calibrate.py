"""``autoplan calibrate``: a plan's steps on this machine, and its profile corrected by them."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from autoplan.cli.files import check_profile

_NO_LOG = "99"


def calibrate(
    path: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    *,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="The plan's model, if it is pkg.mod:factory."),
    ] = None,
    steps: Annotated[int, typer.Option(metavar="N", help="Steps to time.")] = 20,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="A .toml file for the corrections."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of the report.")
    ] = False,
) -> None:
    """Train by a plan here and correct the profile by it.

    Sets predicted against measured.
    """
    check_profile(output)
    from autoplan import api, launch
    from autoplan.cli.progress import ProgressDisplay, logs_held

    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("KINETO_LOG_LEVEL", _NO_LOG)  # of torch's profiler
    launch.start_process_group()
    plan = api.load_plan(path)
    with ProgressDisplay() as progress, logs_held():
        found = api.calibrate(plan, model, steps=steps, progress=progress)
    if os.environ.get("RANK", "0") != "0":
        return
    if as_json:
        print(json.dumps({"measured": asdict(found.measured), "factors": asdict(found.factors)}))
    else:
        from autoplan.report.calibration import print_calibration

        print_calibration(found)
    if output is not None:
        from hardware_profiles.write import save

        save(found.profile, output)
        print(f"profile saved: {output}", file=sys.stderr)
