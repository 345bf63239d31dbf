"""What ``autoplan profile`` found, on a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from autoplan.report import units
from autoplan.report.tables import add_figures, add_words, plain_table
from autoplan.report.text import PIPE_WIDTH
from hardware_profiles.schema import facts_of

if TYPE_CHECKING:
    from autoplan.profiler.profile import Profiled

BUSY = 0.9
"""Of a core: with less of it, the report says that other work was under way."""

_SHOWN = 3
"""Of what is missing for the same reason."""


def print_profile(found: Profiled, console: Console | None = None) -> None:
    """Prints the values that were measured, how well they meet the measurements, what has none."""
    if console is None:
        console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)
    console.print(Text(found.facts.description, style="bold"))
    facts = dict(facts_of(found.facts))
    mine = {name: fact for name, fact in facts.items() if fact.provenance == "measured"}
    console.print(
        f"{found.measured} measurements tell {len(mine)} of {len(facts)} values; "
        f"the others are those of {found.base}."
    )
    if found.idle < BUSY:
        console.print(
            Text(
                f"Other work left {units.percent(found.idle)} of a core's time: measure again on "
                "an idle machine for better figures.",
                style="yellow",
            )
        )
    values = plain_table()
    add_words(values, "value")
    add_figures(values, "measured")
    for name, fact in mine.items():
        values.add_row(name, f"{fact.value:.4g}")
    errors = plain_table()
    add_words(errors, "predicted against measured")
    add_figures(errors, "number", "median error", "largest")
    for row in found.errors:
        errors.add_row(
            row.what, str(row.number), units.percent(row.median), units.percent(row.largest)
        )
    for table in (values, errors):
        console.print()
        console.print(table)
    if found.refused:
        console.print()
    reasons = dict.fromkeys(left.reason for left in found.refused)
    for reason in reasons:
        names = [left.name for left in found.refused if left.reason == reason]
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        shown = f"not measured: {'; '.join(names[:_SHOWN])}{more}: {reason}"
        console.print(Text(shown, style="yellow"))
