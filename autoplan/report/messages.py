"""Messages of a step: what is sent, how much of it, and what of it shows."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from autoplan.plan import Estimate
from autoplan.report import units
from autoplan.report.tables import add_figures, add_words, plain_table

_ROUNDING = 1e-9
MESSAGE_COLUMNS = ("collective", "axis", "messages", "bytes", "time")
AXIS_COLUMNS = ("axis", "time", "shows", "hidden", "of the step")
NOTE = (
    "On the rank that is busy for longest. Bytes are those of the whole tensors that messages are "
    "about. What shows is not hidden by compute; over pp, it is what the rank waits for messages "
    "that come to it."
)


def message_rows(estimate: Estimate) -> Iterator[tuple[str, ...]]:
    """By collective and axis, hidden messages included."""
    for name, seconds in estimate.comm_s.items():
        if seconds <= 0:
            continue
        collective, _, axis = name.rpartition(" ")
        count, nbytes = estimate.comm_counts.get(name), estimate.comm_bytes.get(name)
        yield (
            collective,
            axis,
            "-" if count is None else str(count),
            "-" if nbytes is None else units.nbytes(nbytes),
            units.seconds(seconds),
        )


def axis_rows(estimate: Estimate) -> Iterator[tuple[str, ...]]:
    """What shows by axis; nothing for plan files of older versions."""
    for axis, shown_s in estimate.exposed_by_axis_s.items():
        all_s = sum(s for name, s in estimate.comm_s.items() if name.endswith(f" {axis}"))
        if all_s > 0 or shown_s > 0:
            hidden_s = all_s - shown_s if all_s - shown_s > _ROUNDING * all_s else 0.0
            hidden = "-" if axis == "pp" else units.seconds(hidden_s)
            share = units.percent(shown_s / estimate.step_s)
            yield axis, units.seconds(all_s), units.seconds(shown_s), hidden, share


def message_tables(estimate: Estimate) -> RenderableType:
    """Both tables, for a terminal."""
    parts: list[RenderableType] = [_table(MESSAGE_COLUMNS, message_rows(estimate), words=2)]
    by_axis = [*axis_rows(estimate)]
    if by_axis:
        parts.append(Padding(_table(AXIS_COLUMNS, iter(by_axis), words=1), (1, 0, 0, 0)))
    return Group(*parts, Text(NOTE, style="dim"))


def _table(columns: tuple[str, ...], rows: Iterator[tuple[str, ...]], *, words: int) -> Table:
    """A table whose first columns are words, the others numbers."""
    table = plain_table()
    add_words(table, *columns[:words])
    add_figures(table, *columns[words:])
    for row in rows:
        table.add_row(*map(Text, row))
    return table
