"""The report on a terminal: what was decided, why, and what it is predicted to cost.

Every figure is one that the plan holds, or a sum, share or ratio of such. The hardware profile that
the plan names adds what its values rest on, when it is installed. No torch, so that a plan file is
shown at once.
"""

from __future__ import annotations

import sys

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from autoplan.plan import Plan
from autoplan.report import units, words
from autoplan.report.assumptions import assumption_rows, decision_rows, installed_profile
from autoplan.report.bars import bar_table
from autoplan.report.fold import parameter_rows
from autoplan.report.messages import message_tables
from autoplan.report.modules import module_table
from autoplan.report.opaque import opaque_table
from autoplan.report.ranks import rank_tables
from autoplan.report.scaling import outlook_tables
from autoplan.report.tables import add_words, plain_table
from autoplan.report.trust import error_sentence, gap_sentence
from autoplan.report.versus import versus
from hardware_profiles.spec import ClusterSpec

PIPE_WIDTH = 100


def print_report(plan: Plan, console: Console | None = None) -> None:
    """Prints the whole report, on stdout by default, 100 columns wide where that is no terminal."""
    if console is None:
        console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)
    cluster = installed_profile(plan)
    console.print(_verdict(plan, cluster))
    _section(console, "Assumptions", _pairs(assumption_rows(plan, cluster)))
    _section(console, "Plan", _pairs(decision_rows(plan)))
    if plan.stages:
        _section(console, "Ranks of the pipeline", rank_tables(plan))
    _section(console, f"Memory on the fullest device{_fullest_rank(plan)}", _memory(plan))
    if plan.estimate.modules:
        _section(console, "Which modules take it", module_table(plan))
    _section(console, "Time of one step", _time(plan))
    if any(plan.estimate.comm_s.values()):
        _section(console, "Messages of one step", message_tables(plan.estimate))
    _section(console, "Placement of parameters on tp", _placements(plan))
    if plan.opaque:
        _section(console, "Without a rule", opaque_table(plan.opaque))
    _section(console, "Against other plans", versus(plan))
    if plan.outlook is not None:
        _section(console, "Other sizes", outlook_tables(plan, plan.outlook))
    _section(console, "How good it is", _proof(plan, cluster))


def _section(console: Console, title: str, body: RenderableType) -> None:
    console.print()
    console.print(Text(title, style="bold"))
    console.print(Padding(body, (0, 0, 0, 2)))


def _verdict(plan: Plan, cluster: ClusterSpec | None) -> RenderableType:
    title = Text(words.title(plan, cluster), style="bold")
    title.append(f"  {words.decided(plan)}", style="bold cyan")
    lines = [title, Text(words.verdict(plan), style="green")]
    if plan.job.memory_limit_bytes is not None:
        lines.append(Text(words.memory_limit(plan.job.memory_limit_bytes, plan.job.memory_margin)))
    binds = words.memory_binds(plan)
    if binds:
        lines.append(Text(binds, style="yellow"))
    lines += [Text(f"Warning: {warning}", style="yellow") for warning in plan.warnings]
    return Group(*lines)


def _pairs(rows: list[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def _fullest_rank(plan: Plan) -> str:
    totals = [stage.memory.total for stage in plan.estimate.stages]
    return f", of pp rank {totals.index(max(totals))}" if plan.stages else ""


def _memory(plan: Plan) -> RenderableType:
    fullest = max(plan.estimate.stages, key=lambda stage: stage.memory.total).memory
    limit = plan.estimate.memory_limit_bytes
    rows = [
        (name, units.nbytes(value), value / limit)
        for field, name in words.MEMORY_NAMES.items()
        if (value := getattr(fullest, field)) > 0
    ]
    total = ("total", units.nbytes(fullest.total), fullest.total / limit)
    return bar_table(rows, total, whole=f"{units.nbytes(limit)} limit")


def _time(plan: Plan) -> RenderableType:
    estimate = plan.estimate
    rows = [
        (name, units.seconds(value_s), value_s / estimate.step_s)
        for name, value_s in words.time_parts(estimate)
    ]
    total = ("step", units.seconds(estimate.step_s), 1.0)
    parts: list[RenderableType] = [bar_table(rows, total, whole="one step")]
    rates = [f"{units.count(estimate.samples_per_s)} samples/s"]
    if estimate.tokens_per_s is not None:
        rates.insert(0, f"{units.count(estimate.tokens_per_s)} tokens/s")
    parts.append(Text(f"{', '.join(rates)}, {units.percent(estimate.mfu)} of peak flops (MFU)"))
    return Group(*parts)


def _placements(plan: Plan) -> RenderableType:
    rows = list(parameter_rows(plan.regions))
    whole = [name for name, placement in rows if placement == "Replicate()"]
    if len(whole) == len(rows):
        size = f"tp {plan.mesh.tp}"
        return Text(f"{size}: every parameter is whole on each tensor-parallel rank")
    table = plain_table()
    add_words(table, "parameter")
    table.add_column("placement", no_wrap=True)
    table.add_column("a rank holds", no_wrap=True)
    for name, placement in rows:
        if placement == "Replicate()":
            table.add_row(Text(name, style="dim"), Text(placement, style="dim"), "")
        else:
            table.add_row(Text(name), Text(placement, style="cyan"), f"1/{plan.mesh.tp}")
    return table


def _proof(plan: Plan, cluster: ClusterSpec | None) -> RenderableType:
    search = plan.search
    counted = f"{gap_sentence(plan)} {search.candidates} candidates. Space: {search.space}."
    return Text(f"{counted}\n{error_sentence(cluster)}")
