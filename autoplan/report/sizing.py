"""Clusters that reach a goal, as a table and as plain values for ``--json``.

Rows are plans in time, on the fewest nodes of each cluster and on more where that takes fewer hours
of devices; other numbers of nodes, and clusters that cannot with the reason, stand below.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from autoplan.plurals import counted
from autoplan.report import units, words
from autoplan.report.tables import add_figures, add_words, plain_table
from autoplan.report.text import PIPE_WIDTH
from autoplan.sizing.sizes import SizedPlan, Sizing

_QUICK = "*"


def print_sizing(found: Sizing, console: Console | None = None) -> None:
    """Prints what reaches the goal, on stdout by default."""
    if console is None:
        console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)
    console.print(Text(_question(found), style="bold"))
    for line in _answers(found):
        console.print(Text(line, style="green"))
    for title, body in _sections(found):
        console.print()
        console.print(Text(title, style="bold"))
        console.print(Padding(body, (0, 0, 0, 2)))


def summary(found: Sizing) -> dict[str, Any]:
    """Goal, answers and plans as dicts, lists and numbers; the answers name clusters and nodes."""
    answers = {
        "smallest": found.smallest,
        "least_gpu_hours": found.least_gpu_hours,
        "cheapest": found.cheapest,
    }
    job = found.job
    return {
        "model": job.model.name,
        "goal": asdict(found.goal),
        "global_batch": job.global_batch,
        "seq_len": job.model.seq_len,
        "steps": found.goal.steps(job),
        "precision": job.precision,
        "optimizer": job.optimizer,
        **{
            name: None if one is None else {"cluster": one.plan.job.cluster, "nodes": one.nodes}
            for name, one in answers.items()
        },
        "clusters": [
            {
                "cluster": each.cluster,
                "device": each.device,
                "reason": each.reason,
                "smallest": each.smallest and _record(found, each.smallest),
                "others": [_record(found, other) for other in each.others],
            }
            for each in found.clusters
        ],
    }


def file_name(sized: SizedPlan) -> str:
    """Of the plan's file: ``dgx-h100-64-nodes.json``."""
    cluster = sized.plan.job.cluster.rpartition("/")[2].removesuffix(".toml")
    return f"{cluster}-{sized.nodes}-nodes.json"


def _record(found: Sizing, sized: SizedPlan) -> dict[str, Any]:
    plan = sized.plan
    return {
        "nodes": sized.nodes,
        "devices": sized.devices,
        "days": sized.days,
        "least_days": sized.least_days,
        "in_time": sized.days <= found.goal.days,
        "gpu_hours": sized.gpu_hours,
        "price_per_gpu_hour_usd": sized.price_per_gpu_hour_usd,
        "usd": sized.usd,
        "searched": "all" if sized.is_whole else "one configuration",
        "gap": sized.gap,
        "step_s": plan.estimate.step_s,
        "tokens_per_s": plan.estimate.tokens_per_s,
        "mfu": plan.estimate.mfu,
        "peak_memory_bytes": plan.estimate.peak_memory_bytes,
        "mesh": asdict(plan.mesh),
        "zero": plan.zero,
        "schedule": plan.schedule,
    }


def _question(found: Sizing) -> str:
    goal, job = found.goal, found.job
    step_tokens = _tokens(job.global_batch * (job.model.seq_len or 1))
    return (
        f"{job.model.name}, {_tokens(goal.tokens)} tokens in {goal.days:g} days: "
        f"{goal.steps(job):,} steps of {job.global_batch} samples of {job.model.seq_len} tokens "
        f"({step_tokens} a step), {job.precision}, {job.optimizer}"
    )


def _tokens(count: float) -> str:
    """As people say them: ``1T``, ``300B``, ``4.19M``."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:,.0f}"


def _answers(found: Sizing) -> Iterator[str]:
    if found.smallest is None or found.least_gpu_hours is None:
        yield "No cluster that was looked at reaches it."
        return
    yield f"Smallest: {_told(found.smallest)}."
    yield f"Fewest GPU hours: {_told(found.least_gpu_hours)}."
    cheapest = found.cheapest
    if cheapest is None:
        yield "Cheapest: none of these profiles states a price; give one in a profile of your own."
    else:
        yield (
            f"Cheapest of those with a price: {_told(cheapest)}, {_money(cheapest)} at an assumed "
            f"{cheapest.price_per_gpu_hour_usd:.2f} USD per GPU hour."
        )


def _told(sized: SizedPlan) -> str:
    nodes = counted(sized.nodes, "node")
    return (
        f"{sized.plan.job.cluster}, {nodes} with {sized.devices:,} devices, "
        f"{sized.days:.1f} days, {units.count(sized.gpu_hours)} GPU hours"
    )


def _money(sized: SizedPlan) -> str:
    return "-" if sized.usd is None else f"{units.count(sized.usd)} USD"


def _sections(found: Sizing) -> Iterator[tuple[str, RenderableType]]:
    rows = sorted(_rows(found), key=lambda sized: sized.gpu_hours)
    if rows:
        yield (
            "In time on the fewest nodes, and on more where that takes fewer GPU hours",
            _table(rows),
        )
    rest = [each for each in found.clusters if each.smallest is None]
    if others := list(_others(found)):
        yield "Other numbers of nodes that were planned", _pairs(others)
    if rest:
        yield (
            "Clusters that do not reach it",
            _pairs([(each.cluster, each.reason) for each in rest]),
        )
    yield "How to read it", Text(_notes(found), style="dim")


def _rows(found: Sizing) -> Iterator[SizedPlan]:
    """The smallest of each cluster, and what takes fewer hours of its devices."""
    for each in found.clusters:
        fewest = float("inf")
        for sized in sorted(each.in_time(found.goal), key=lambda sized: sized.nodes):
            if sized.gpu_hours < fewest:
                fewest = sized.gpu_hours
                yield sized


def _table(rows: list[SizedPlan]) -> Table:
    table = plain_table()
    add_words(table, "cluster")
    add_figures(table, "nodes", "GPUs", "days", "GPU hours", "cost", "MFU", "gap")
    add_words(table, "plan")
    for sized in rows:
        table.add_row(Text(sized.plan.job.cluster), *_cells(sized))
    return table


def _cells(sized: SizedPlan) -> tuple[str, ...]:
    return (
        str(sized.nodes),
        f"{sized.devices:,}",
        f"{sized.days:.1f}",
        units.count(sized.gpu_hours),
        _money(sized),
        units.percent(sized.plan.estimate.mfu),
        units.percent(sized.gap) + ("" if sized.is_whole else _QUICK),
        words.decided(sized.plan),
    )


def _others(found: Sizing) -> Iterator[tuple[str, str]]:
    """What is in no row of the table, by cluster."""
    shown = {id(sized) for sized in _rows(found)}
    for each in found.clusters:
        rest = [sized for sized in each.plans if id(sized) not in shown]
        if rest:
            yield each.cluster, "; ".join(_other(found, sized) for sized in rest)


def _other(found: Sizing, sized: SizedPlan) -> str:
    could = f" ({sized.least_days:.1f} at least)" if sized.is_open(found.goal) else ""
    hours = units.count(sized.gpu_hours)
    return f"{counted(sized.nodes, 'node')} {sized.days:.1f} days{could}, {hours} GPU hours"


def _pairs(rows: list[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(Text(name), Text(text))
    return table


def _notes(found: Sizing) -> str:
    lines = [
        "Every row is a plan; days are of training without a break. Nodes are powers of two, three "
        "times such, and all there are.",
    ]
    if any(plan.is_open(found.goal) for each in found.clusters for plan in each.plans):
        lines.append("Days at least: another plan on these nodes could be in time.")
    if any(not plan.is_whole for plan in found.in_time()):
        lines.append(
            f"{_QUICK} one configuration was searched, that which looked fastest: no other on "
            "these nodes takes less by more than the gap. Of the answers all were searched."
        )
    return " ".join(lines)
