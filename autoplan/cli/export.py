"""``autoplan export``: a plan as the configuration of another framework."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from autoplan.cli.files import write


def export(
    path: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    *,
    to: Annotated[
        str,
        typer.Option(
            metavar="FRAMEWORK",
            help="torchtitan, megatron, deepspeed, accelerate, or torch (a script).",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Write files here; else to stdout."),
    ] = None,
) -> None:
    """Write the nearest configuration of another framework.

    What it cannot express is told on stderr.
    """
    from autoplan import api
    from autoplan.errors import PlanError
    from autoplan.export.frameworks import export as exported

    found = exported(api.load_plan(path), to)
    if output is not None and output.exists() and not output.is_dir():
        raise PlanError(f"-o {output}: is a file; name a directory")
    for name, text in found.files.items():
        if output is None:
            print(text, end="")
        else:
            output.mkdir(parents=True, exist_ok=True)
            write(found.framework, output / name, text)
    print(f"not in it ({found.framework}):", file=sys.stderr)
    for each in found.left_out:
        print(f"- {each}", file=sys.stderr)
