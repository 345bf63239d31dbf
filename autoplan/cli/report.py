"""``autoplan report``: a saved plan as text, JSON, one HTML file, or a trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoplan.cli.files import check_directory, write

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
    from autoplan import plan_io

    check_directory("--html", html)
    check_directory("--trace", trace)
    show(plan_io.load(path), html=html, trace=trace, as_json=as_json)


def show(
    plan: Plan,
    *,
    html: Path | None,
    trace: Path | None,
    as_json: bool,
    search_s: float | None = None,
) -> None:
    """Writes the files that are asked for, whose directories are there, and prints the report."""
    if html is not None:
        from autoplan.report.html import page

        write("html", html, page(plan))
    if trace is not None:
        from autoplan.report.trace import trace as trace_of

        write("trace", trace, json.dumps(trace_of(plan), allow_nan=False) + "\n")
    if as_json:
        from autoplan.report.summary import summary

        print(json.dumps(summary(plan, search_s=search_s), indent=2, allow_nan=False))
        return
    from autoplan.report.show import print_report

    print_report(plan)
