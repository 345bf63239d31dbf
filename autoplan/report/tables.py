"""The look of tables in a terminal: no lines, dim headings, columns two spaces apart.

Figures stand right and are never broken; words stand left and are folded where there is no room.
"""

from __future__ import annotations

from rich.table import Table


def plain_table(*, headed: bool = True, apart: int = 2) -> Table:
    """A table without columns.

    Args:
        apart: spaces between columns.
    """
    return Table(
        box=None,
        show_header=headed,
        pad_edge=False,
        header_style="dim",
        padding=(0, apart, 0, 0),
    )


def add_words(table: Table, *names: str) -> None:
    """Columns of words that may be long."""
    for name in names:
        table.add_column(name, overflow="fold")


def add_figures(table: Table, *names: str) -> None:
    """Columns of figures."""
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
