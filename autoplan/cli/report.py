"""``autoplan report``: a saved plan as text, JSON, one HTML file, or a trace."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoplan.errors import PlanError

if TYPE_CHECKING:
    from autoplan.plan import Plan

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the report.")]
Html = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the report as one HTML file that needs no network."),
]
Trace = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the step as a trace for ui.perfetto.dev."),
]


def report(
    path: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    *,
    html: Html = None,
    trace: Trace = None,
    as_json: Json = False,
) -> None:
    """Show a saved plan and the estimate stored in it."""
    from autoplan import api

    show(api.load_plan(path), html=html, trace=trace, as_json=as_json)


def check_directory(option: str, path: Path | None) -> None:
    """Refuses a file that cannot be written, before the work.

    Raises:
        PlanError: there is no such directory.
    """
    if path is not None and not path.parent.is_dir():
        raise PlanError(f"{option} {path}: {path.parent} is not a directory; create it first")


def show(
    plan: Plan,
    *,
    html: Path | None,
    trace: Path | None,
    as_json: bool,
    search_s: float | None = None,
) -> None:
    """Writes the files that are asked for, and prints the report."""
    if html is not None:
        from autoplan.report.html import page

        _write("--html", html, page(plan))
    if trace is not None:
        from autoplan.report.trace import trace as trace_of

        _write("--trace", trace, json.dumps(trace_of(plan), allow_nan=False) + "\n")
    if as_json:
        from autoplan.report.summary import summary

        print(json.dumps(summary(plan, search_s=search_s), indent=2, allow_nan=False))
        return
    from autoplan import api

    api.print_report(plan)


def _write(option: str, path: Path, text: str) -> None:
    check_directory(option, path)
    path.write_text(text, encoding="utf-8")
    print(f"{option.removeprefix('--')} saved: {path}", file=sys.stderr)
