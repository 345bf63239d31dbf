"""How speed follows the nodes, and the largest sizes that fit: what a plan's outlook says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autoplan.plan import Plan
from autoplan.plan_details import Outlook, SizeLimit
from autoplan.plurals import counted
from autoplan.report import units
from autoplan.report.tables import add_figures, plain_table

COLUMNS = ("nodes", "devices", "batch", "step", "samples/s", "scaling")
MEANING = "Scaling is T_n / (n T_1): a device's samples per second over those of the first row."


def batch_note(batches: Sequence[int]) -> str | None:
    """What a batch that grows means for the learning rate; None for one batch."""
    if len(batches) < 2:
        return None
    return (
        f"The batch grows from {batches[0]} to {batches[-1]}: the linear scaling rule multiplies "
        "the learning rate by as much, with warm-up (Goyal et al. 2017); beyond a batch that "
        "depends on the problem, larger ones need as many steps (McCandlish et al. 2018)."
    )


def scaling_notes(outlook: Outlook) -> list[str]:
    """What to know of the points."""
    batches = [*dict.fromkeys(point.global_batch for point in outlook.scaling)]
    notes = [MEANING] if len(outlook.scaling) > 1 else []
    if note := batch_note(batches):
        notes.append(note)
    elif len(outlook.scaling) > 1:
        notes.append("The batch stays the same, so that each device has less to do on more nodes.")
    notes += [
        f"No plan on {counted(point.nodes, 'node')}: {point.reason}."
        for point in outlook.scaling
        if point.samples_per_s is None
    ]
    return notes


def scaling_rows(outlook: Outlook) -> Iterator[tuple[str, ...]]:
    """Points that have a plan, in the order of ``COLUMNS``."""
    for point in outlook.scaling:
        if point.samples_per_s is None or point.step_s is None:
            continue
        yield (
            str(point.nodes),
            str(point.devices),
            str(point.global_batch),
            units.seconds(point.step_s),
            units.count(point.samples_per_s),
            units.percent(outlook.scaling_of(point) or 0.0),
        )


def limit_rows(plan: Plan, outlook: Outlook) -> list[tuple[str, str]]:
    """The largest sizes that fit, named."""
    found = (
        ("microbatch", outlook.largest_microbatch, "samples a device on this mesh"),
        ("length", outlook.longest_sequence, "tokens in a sample on as many devices"),
    )
    return [(name, _limit(plan, limit, unit)) for name, limit, unit in found if limit is not None]


def _limit(plan: Plan, limit: SizeLimit, unit: str) -> str:
    share = units.percent(limit.peak_memory_bytes / plan.estimate.memory_limit_bytes)
    memory = f"{units.nbytes(limit.peak_memory_bytes)} ({share})"
    return f"{limit.value} {unit}, with {memory}; {beyond(limit)}"


def beyond(limit: SizeLimit) -> str:
    """What is known of larger sizes."""
    return f"{limit.does_not_fit} do not fit" if limit.does_not_fit else "more cannot be had"


def outlook_tables(plan: Plan, outlook: Outlook) -> RenderableType:
    """Points and limits, for a terminal."""
    parts: list[RenderableType] = []
    if outlook.scaling:
        table = plain_table()
        add_figures(table, *COLUMNS)
        for row in scaling_rows(outlook):
            table.add_row(*map(Text, row))
        parts += [table, Text(" ".join(scaling_notes(outlook)), style="dim")]
    limits = limit_rows(plan, outlook)
    if limits:
        grid = Table.grid(padding=(0, 2))
        for name, text in limits:
            grid.add_row(Text(name), Text(text))
        parts += [Text("Largest that fits"), grid]
    return Group(*parts)
