"""The plan beside the standard recipes and the runners-up, and why each of them lost.

Figures stand in a table of less than 80 columns, the reasons below it, where each has a line.
"""

from __future__ import annotations

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from autoplan.plan import Alternative, Plan
from autoplan.report import units, words


def versus(plan: Plan) -> Group:
    """A row a plan, the chosen one first, then the reasons; times are of the same cost model."""
    reasons = Table.grid(padding=(0, 2))
    reasons.add_column(no_wrap=True)
    reasons.add_column(overflow="fold")
    for other in plan.alternatives:
        style = "" if other.fits else "dim"
        reasons.add_row(Text(other.name), Text(other.reason), style=style)
    return Group(_figures(plan), Padding(reasons, (1, 0, 0, 0)))


def _figures(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("plan", no_wrap=True, overflow="ellipsis", max_width=17)
    table.add_column("mesh", no_wrap=True)
    for name in ("ZeRO", "microb.", "step", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    recomputes = _recomputes(plan)
    if recomputes:
        table.add_column("recompute", no_wrap=True)
    table.add_row(
        "this plan",
        words.mesh(plan.mesh),
        str(plan.zero),
        str(plan.num_microbatches),
        units.seconds(plan.estimate.step_s),
        units.nbytes(plan.estimate.peak_memory_bytes),
        *([words.recompute_share(plan)] if recomputes else []),
        style="bold green",
    )
    for other in plan.alternatives:
        table.add_row(*_row(other, plan, recomputes), style="" if other.fits else "dim")
    return table


def _recomputes(plan: Plan) -> bool:
    """Whether any of the plans recomputes something."""
    return words.recompute_share(plan) != "none" or any(
        other.recompute != "none" for other in plan.alternatives
    )


def _row(other: Alternative, plan: Plan, recomputes: bool) -> tuple[str | Text, ...]:
    return (
        Text(other.name),
        words.mesh(other.mesh),
        str(other.zero),
        str(other.num_microbatches),
        "-" if other.step_s is None else units.seconds(other.step_s),
        units.nbytes(other.peak_memory_bytes),
        *([Text(other.recompute.removesuffix(" blocks"))] if recomputes else []),
    )
