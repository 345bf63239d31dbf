"""Speed and memory along one size of a job: on a terminal, as a picture, and as plain values."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from autoplan.plan import Plan
from autoplan.plurals import counted
from autoplan.report import units, words
from autoplan.report.bars import Bar
from autoplan.report.html.markup import Markup, element
from autoplan.report.scaling import MEANING, batch_note, beyond
from autoplan.report.tables import add_figures, add_words, plain_table
from autoplan.report.text import PIPE_WIDTH
from autoplan.sizing.sweeps import Limit, Point, Sweep

_NAMES = {"nodes": "nodes", "global_batch": "batch", "seq_len": "tokens"}
_BAR = 14
_WIDTH, _ROW, _LEFT, _RIGHT = 640, 26, 80, 150


def print_sweep(found: Sweep, console: Console | None = None) -> None:
    """Prints the points and what follows from them, on stdout by default."""
    if console is None:
        console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)
    console.print(Text(_title(found), style="bold"))
    for title, body in _sections(found):
        console.print()
        console.print(Text(title, style="bold"))
        console.print(Padding(body, (0, 0, 0, 2)))


def summary(found: Sweep) -> dict[str, Any]:
    """The sweep as dicts, lists and numbers."""
    return {
        "over": found.over,
        "points": [_record(found, point) for point in found.points],
        "largest_microbatch": _limit(found.largest_microbatch),
        "longest_sequence": _limit(found.longest_sequence),
    }


def picture(found: Sweep) -> str:
    """An SVG file with bars of speed and of memory, by point."""
    planned = [(point, point.plan) for point in found.points if point.plan]
    fastest = max((rate(plan) for _, plan in planned), default=1.0)
    speeds = [
        (
            str(_value(found, point)),
            rate(plan) / fastest,
            f"{units.count(rate(plan))} {_unit(plan)}",
        )
        for point, plan in planned
    ]
    memory = [
        (str(_value(found, point)), _memory_share(plan), _memory(plan)) for point, plan in planned
    ]
    height = 2 * (_ROW * (len(planned) + 2)) + _ROW
    shapes = [element("title", _title(found)), _label(10, 18, _title(found), bold=True)]
    shapes += _bars(f"{_NAMES[found.over]}: speed", speeds, _ROW, "#2a78d6")
    shapes += _bars(
        f"{_NAMES[found.over]}: memory of the fullest device, full bar: its limit",
        memory,
        _ROW * (len(planned) + 3),
        "#1a8a5f",
    )
    svg = element(
        "svg", *shapes, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {_WIDTH} {height}",
        width=_WIDTH, height=height, role="img", font_family="sans-serif", font_size=12,
    )  # fmt: skip
    return f"{svg}\n"


def rate(plan: Plan) -> float:
    """Tokens per second, or samples where the model has no tokens."""
    estimate = plan.estimate
    return estimate.samples_per_s if estimate.tokens_per_s is None else estimate.tokens_per_s


def _unit(plan: Plan) -> str:
    return "samples/s" if plan.estimate.tokens_per_s is None else "tokens/s"


def _memory_share(plan: Plan) -> float:
    return plan.estimate.peak_memory_bytes / plan.estimate.memory_limit_bytes


def _memory(plan: Plan) -> str:
    return f"{units.nbytes(plan.estimate.peak_memory_bytes)} ({units.percent(_memory_share(plan))})"


def _bars(
    title: str, rows: Sequence[tuple[str, float, str]], top: float, colour: str
) -> Iterator[Markup]:
    yield _label(10, top + 18, title)
    most = _WIDTH - _LEFT - _RIGHT
    for number, (name, share, text) in enumerate(rows, start=1):
        y, width = top + _ROW * number, round(most * min(share, 1.0), 1)
        yield _label(_LEFT - 10, y + 18, name, anchor="end")
        yield element("rect", x=_LEFT, y=y + 4, width=width, height=_ROW - 8, rx=2, fill=colour)
        yield _label(_LEFT + width + 8, y + 18, text)


def _label(x: float, y: float, text: str, *, anchor: str = "start", bold: bool = False) -> Markup:
    return element(
        "text", text, x=x, y=y, text_anchor=anchor, fill="#777777" if not bold else "#555555",
        font_weight="bold" if bold else None,
    )  # fmt: skip


def _title(found: Sweep) -> str:
    job = found.points[0].job
    parts = [
        counted(job.nodes, "node") if found.over != "nodes" else "",
        f"batch {job.global_batch}" if len(found.batches) == 1 else "",
        f"{job.model.seq_len} tokens a sample" if found.over != "seq_len" and job.model.seq_len
        else "",
        job.precision,
        job.optimizer,
    ]  # fmt: skip
    given = ", ".join(part for part in parts if part)
    return f"{job.model.name} on {job.cluster} over {_NAMES[found.over]}: {given}"


def _sections(found: Sweep) -> Iterator[tuple[str, RenderableType]]:
    yield "Each row is a plan", _table(found)
    missing = [point for point in found.points if point.plan is None]
    if missing:
        yield "No plan", _pairs([(str(_value(found, each)), each.reason) for each in missing])
    limits = list(_limits(found))
    if limits:
        yield "Largest that fits, on the devices of the last row", _pairs(limits)
    notes = list(_notes(found))
    if notes:
        yield "How to read it", Text(" ".join(notes), style="dim")


def _value(found: Sweep, point: Point) -> int:
    job = point.job
    return {
        "nodes": job.nodes,
        "global_batch": job.global_batch,
        "seq_len": job.model.seq_len or 0,
    }[found.over]


def _table(found: Sweep) -> Table:
    table = plain_table()
    several = len(found.batches) > 1 and found.over != "global_batch"
    scales = found.over == "nodes" and len(found.points) > 1
    unit = next((_unit(point.plan) for point in found.points if point.plan), "tokens/s")
    add_figures(table, _NAMES[found.over], *(["batch"] if several else []), "step", unit)
    table.add_column("", width=_BAR)
    add_figures(table, "MFU", "memory", *(["scaling"] if scales else []))
    add_words(table, "plan")
    fastest = max((rate(point.plan) for point in found.points if point.plan), default=1.0)
    for point in found.points:
        plan = point.plan
        if plan is None:
            continue
        scaling = found.scaling(point)
        table.add_row(
            str(_value(found, point)),
            *([str(point.job.global_batch)] if several else []),
            units.seconds(plan.estimate.step_s),
            units.count(rate(plan)),
            Bar(rate(plan) / fastest),
            units.percent(plan.estimate.mfu),
            _memory(plan),
            *([units.percent(scaling or 0.0)] if scales else []),
            words.decided(plan),
        )
    return table


def _limits(found: Sweep) -> Iterator[tuple[str, str]]:
    for name, limit, unit in (
        ("microbatch", found.largest_microbatch, "samples on the mesh of that row"),
        ("length", found.longest_sequence, "tokens in a sample"),
    ):
        if limit is not None:
            plan = f"{words.decided(limit.plan)}, {_memory(limit.plan)}"
            yield name, f"{limit.value} {unit}; {beyond(limit.short)} ({plan})"


def _notes(found: Sweep) -> Iterator[str]:
    if found.over == "nodes" and len(found.points) > 1:
        yield MEANING
    if note := batch_note(found.batches):
        yield note


def _pairs(rows: list[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(Text(name), Text(text))
    return table


def _record(found: Sweep, point: Point) -> dict[str, Any]:
    record: dict[str, Any] = {
        "nodes": point.job.nodes,
        "devices": point.job.world_size,
        "global_batch": point.job.global_batch,
        "seq_len": point.job.model.seq_len,
        "reason": point.reason,
    }
    if point.plan is not None:
        estimate = point.plan.estimate
        record |= {
            "step_s": estimate.step_s,
            "tokens_per_s": estimate.tokens_per_s,
            "samples_per_s": estimate.samples_per_s,
            "mfu": estimate.mfu,
            "peak_memory_bytes": estimate.peak_memory_bytes,
            "memory_limit_bytes": estimate.memory_limit_bytes,
            "scaling": found.scaling(point),
            "gap": point.plan.search.gap,
            "mesh": asdict(point.plan.mesh),
            "zero": point.plan.zero,
        }
    return record


def _limit(limit: Limit | None) -> dict[str, Any] | None:
    if limit is None:
        return None
    return asdict(limit.short) | {"mesh": asdict(limit.plan.mesh)}
