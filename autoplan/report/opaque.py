"""The operators that a plan runs without a rule, and what they take."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from autoplan.plan import OpaquePlan
from autoplan.report import units
from autoplan.report.tables import add_words, plain_table

CURE = "Every rank of tp computes the whole of them; autoplan.register_rule tells how they split."


def opaque_table(opaque: Sequence[OpaquePlan]) -> RenderableType:
    """A row for each operator, and what to do about them."""
    table = plain_table()
    add_words(table, "operator")
    for title in ("calls", "a microbatch", "batch"):
        table.add_column(title, no_wrap=True)
    add_words(table, "first")
    for each in opaque:
        table.add_row(
            Text(each.operator),
            str(each.calls),
            units.seconds(each.microbatch_s),
            "split" if each.splits_batch else "in one piece",
            Text(each.first),
        )
    return Group(table, Text(CURE, style="dim"))
