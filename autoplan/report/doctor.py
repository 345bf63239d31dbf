"""What looking a model over found: the gravest first, each with its lines of source."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from autoplan.findings import Effect, Finding, Findings
from autoplan.plurals import counted
from autoplan.report.tables import add_words, plain_table
from autoplan.report.text import PIPE_WIDTH

_EFFECTS: dict[Effect, tuple[str, str]] = {
    "stops": ("No plan", "bold red"),
    "limits": ("Fewer plans", "bold yellow"),
    "costs": ("To know", "bold cyan"),
}
_SHOWN = 3
"""Lines of source that are shown of each finding."""


def print_findings(found: Findings, console: Console | None = None) -> None:
    """Prints them, on stdout by default."""
    if console is None:
        console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)
    for part in _parts(found):
        console.print(part)


def _parts(found: Findings) -> Iterator[RenderableType]:
    yield Text(_summary(found), style="bold" if found.findings else "bold green")
    for effect, (words, style) in _EFFECTS.items():
        own = [finding for finding in found.findings if finding.effect == effect]
        if own:
            yield Text()
            yield Text(words, style=style)
        for finding in own:
            yield Text()
            yield from _finding(finding)


def _summary(found: Findings) -> str:
    traced = (
        "it cannot be traced; what follows was found past the first reason"
        if found.operators is None
        else f"{found.operators} operators looked at"
    )
    count = len(found.findings)
    what = "nothing found" if found.ok else counted(count, "finding")
    return f"{found.model}: {what}, {traced}"


def _finding(finding: Finding) -> Iterator[RenderableType]:
    yield Padding(Text.assemble((finding.kind, "bold"), ": ", finding.what), (0, 0, 0, 2))
    table = plain_table(headed=False)
    table.add_column(style="dim", no_wrap=True)
    add_words(table, "")
    for place in finding.places[:_SHOWN]:
        table.add_row("at", Text.assemble(place.where, "  ", (place.text, "italic")))
    if len(finding.places) > _SHOWN:
        table.add_row("", f"and {len(finding.places) - _SHOWN} more lines")
    table.add_row("cost", finding.cost)
    table.add_row("do", finding.cure)
    yield Padding(table, (0, 0, 0, 4))
