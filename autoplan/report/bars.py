"""Tables with horizontal bars, plain enough to survive a pipe or a log file."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from autoplan.report import units

BAR_WIDTH = 36
_EIGHTHS = " ▏▎▍▌▋▊▉█"


class Bar:
    """A bar that fills ``fraction`` of its cell; ``#`` where the output has no block characters."""

    def __init__(self, fraction: float, *, style: str = "cyan", offset: float = 0.0) -> None:
        self._fraction = fraction
        self._offset = offset
        self._style = Style.parse(style)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, BAR_WIDTH)
        start = min(round(width * self._offset), width - 1)
        filled = min(max(self._fraction, 0.0), 1.0) * width
        whole, part = divmod(round(filled * 8), 8)
        if options.ascii_only:
            text = "#" * max(round(filled), 1 if self._fraction > 0 else 0)
        else:
            text = "█" * whole + (
                _EIGHTHS[max(part, 0 if whole else 1)] if part or not whole else ""
            )
        yield Segment(" " * start)
        yield Segment(text[: width - start], self._style)


def bar_table(
    rows: Sequence[tuple[str, str, float]], total: tuple[str, str, float], *, whole: str
) -> Table:
    """Rows of (name, value, fraction of the whole), each bar starting where the last one ended.

    Args:
        total: the closing row.
        whole: what a full bar stands for.
    """
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(width=BAR_WIDTH)
    offset = 0.0
    for name, value, fraction in rows:
        table.add_row(name, value, units.percent(fraction), Bar(fraction, offset=offset))
        offset += fraction
    name, value, fraction = total
    style = "bold" if fraction <= 1 else "bold red"
    table.add_row(
        Text(name, style=style),
        Text(value, style=style),
        Text(units.percent(fraction), style=style),
        Bar(fraction, style="green" if fraction <= 1 else "red"),
    )
    table.add_row("", "", "", Text(f"full width: {whole}", style="dim"))
    return table
