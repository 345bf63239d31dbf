"""Two plans side by side on a terminal, and as plain values for ``--json``.

What was asked otherwise comes first: where models or batches differ, seconds of a step answer
different questions, and the verdict says what can be compared.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from autoplan.plan import Plan
from autoplan.report import units, words
from autoplan.report.assumptions import installed_profile
from autoplan.report.differences import Amount, Choice, Comparison, RankAmounts, compare
from autoplan.report.fold import ranges
from autoplan.report.tables import plain_table
from autoplan.report.text import PIPE_WIDTH
from autoplan.report.trust import step_error

_Show = Callable[[float], str]
_SAME = 1e-3
"""Step times that differ by less are those of one plan: the tolerance of the search."""


def print_comparison(
    first: Plan, second: Plan, labels: tuple[str, str], console: Console | None = None
) -> None:
    """Prints two plans side by side, on stdout by default; ``labels`` are their names."""
    if console is None:
        console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)
    found = compare(first, second)
    for label, plan in zip(labels, (first, second), strict=True):
        title = Text(f"{label}: ", style="bold")
        title.append(words.title(plan, installed_profile(plan)))
        console.print(title.append(f"  {words.decided(plan)}", style="bold cyan"))
    console.print(Text(verdict(found, first, second, labels), style="green"))
    for title, body in _sections(found, labels):
        console.print()
        console.print(Text(title, style="bold"))
        console.print(Padding(body, (0, 0, 0, 2)))


def summary(first: Plan, second: Plan, labels: tuple[str, str]) -> dict[str, Any]:
    """The comparison as dicts, lists and numbers: seconds and bytes; differences are the second
    plan's less the first one's."""
    found = compare(first, second)
    record = asdict(found)
    for name in ("time_s", "memory_bytes"):
        record[name] = [_plain(amount) for amount in getattr(found, name)]
    record["ranks"] = [
        {"rank": rank.rank}
        | {name: _plain(getattr(rank, name)) for name in ("compute_s", "bubble_s", "memory_bytes")}
        for rank in found.ranks
    ]
    record["operators"] = [
        {"module": each.name, "otherwise": int(each.first), "operators": int(each.second)}
        for each in found.operators
    ]
    return {"plans": list(labels), "verdict": verdict(found, first, second, labels)} | record


def verdict(found: Comparison, first: Plan, second: Plan, labels: tuple[str, str]) -> str:
    """Which plan is faster, by what can be compared."""
    if first == second:
        return "Both are the same plan."
    if not found.same_model:
        return (
            "They train different models: the figures stand side by side and do not say which "
            "plan is better."
        )
    if found.same_step:
        ours, theirs = first.estimate.step_s, second.estimate.step_s
        against = f"{units.seconds(theirs)} a step against {units.seconds(ours)}"
    else:
        # Seconds of a sample, so that less is better here too.
        ours, theirs = (1 / plan.estimate.samples_per_s for plan in (first, second))
        against = f"{1 / theirs:.3g} samples/s against {1 / ours:.3g}, with another batch"
    if abs(theirs / ours - 1) < _SAME:
        return f"They are as fast, within what the search resolves: {against}."
    share = units.percent(abs(theirs / ours - 1))
    text = f"{labels[1]} takes {share} {'less' if theirs < ours else 'more'} time: {against}."
    text += _device_seconds(first, second)
    return text + _doubt(first, second, max(ours, theirs) / min(ours, theirs) - 1)


def _device_seconds(first: Plan, second: Plan) -> str:
    """What a sample takes of the devices, where their numbers differ."""
    plans = second, first
    counts = [plan.mesh.world_size for plan in plans]
    if counts[0] == counts[1]:
        return ""
    spent = [
        units.seconds(count / plan.estimate.samples_per_s)
        for count, plan in zip(counts, plans, strict=True)
    ]
    return (
        f" It has {counts[0]} devices against {counts[1]}: {spent[0]} of a device for each sample "
        f"against {spent[1]}."
    )


def _doubt(first: Plan, second: Plan, difference: float) -> str:
    """Where the difference is within the model's error on the device of both plans."""
    error = step_error(installed_profile(first))
    if error is None or first.profile_digest != second.profile_digest or difference > error.median:
        return ""
    return (
        f" That is within the model's median error of {units.percent(error.median)} on published "
        "runs: measure both where it matters."
    )


def _sections(found: Comparison, labels: tuple[str, str]) -> Iterator[tuple[str, RenderableType]]:
    if found.questions:
        yield "Asked otherwise", _choices("", found.questions, labels)
    if found.decisions:
        yield "Decided otherwise", _choices("", found.decisions, labels)
    if found.placements:
        yield "Parameters placed otherwise on tp", _choices("parameter", found.placements, labels)
    if found.operators:
        yield "Operators run in other placements on tp", _operators(found.operators)
    if not (found.decisions or found.placements or found.operators):
        yield "Decided otherwise", Text("nothing")
    yield "Time of one step", _amounts(found.time_s, labels, units.seconds, words.COMPONENTS)
    yield (
        "Memory of the fullest device",
        _amounts(found.memory_bytes, labels, units.nbytes, words.MEMORY_NAMES),
    )
    if found.ranks:
        yield "Ranks of the pipeline", _ranks(found.ranks, labels)


def _table(*columns: str, text: Sequence[int] = (0,)) -> Table:
    table = plain_table()
    for number, name in enumerate(columns):
        is_text = number in text
        table.add_column(
            Text(name),
            justify="left" if is_text else "right",
            overflow="fold",
            no_wrap=not is_text,
        )
    return table


def _choices(heading: str, rows: Sequence[Choice], labels: tuple[str, str]) -> Table:
    table = _table(heading, *labels, text=(0, 1, 2))
    for row in rows:
        table.add_row(Text(row.name), Text(row.first), Text(row.second))
    return table


def _operators(rows: Sequence[Choice]) -> Table:
    table = _table("module", "otherwise", "operators")
    for row in rows:
        table.add_row(Text(row.name), row.first, row.second)
    return table


def _amounts(
    rows: Sequence[Amount], labels: tuple[str, str], show: _Show, names: dict[str, str]
) -> Table:
    """A row for each category that a plan has, the sum last."""
    table = _table("", *labels, "difference")
    for row in rows:
        if row.first or row.second:
            is_sum = row.name not in names
            name = {"step_s": "step"}.get(row.name, row.name) if is_sum else names[row.name]
            table.add_row(name, *_cells(row, show), style="bold" if is_sum else "")
    return table


def _cells(amount: Amount, show: _Show) -> tuple[str, str, str]:
    shown = ["-" if value is None else show(value) for value in (amount.first, amount.second)]
    more = amount.difference
    return shown[0], shown[1], "" if more is None else f"+{show(more)}" if more > 0 else show(more)


def _ranks(ranks: Sequence[RankAmounts], labels: tuple[str, str]) -> Table:
    """Neighbours of which every figure shown is the same are one row."""
    table = _table("rank", *(f"{what} {label}" for what in ("compute", "bubble", "memory")
                             for label in labels))  # fmt: skip
    groups: list[tuple[list[int], tuple[str, ...]]] = []
    for rank in ranks:
        cells = (
            *_cells(rank.compute_s, units.seconds)[:2],
            *_cells(rank.bubble_s, units.seconds)[:2],
            *_cells(rank.memory_bytes, units.nbytes)[:2],
        )
        if groups and groups[-1][1] == cells:
            groups[-1][0].append(rank.rank)
        else:
            groups.append(([rank.rank], cells))
    for numbers, cells in groups:
        table.add_row(ranges(numbers), *cells)
    return table


def _plain(amount: Amount) -> dict[str, Any]:
    return asdict(amount) | {"difference": amount.difference}
