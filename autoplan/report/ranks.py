"""The ranks of a pipeline: what each of them runs, and what that takes.

Neighbours of which every shown figure is the same are one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from autoplan.plan import Plan, StageEstimate
from autoplan.report import units
from autoplan.report.bars import Bar
from autoplan.report.fold import named_blocks, ranges

_BAR_WIDTH = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rank:
    """One rank and its stages; ``outside`` are modules at which its parts of the root begin."""

    number: int
    stages: tuple[int, ...]
    blocks: tuple[str, ...]
    outside: tuple[str, ...]
    is_last: bool
    estimate: StageEstimate


def rank_tables(plan: Plan) -> RenderableType:
    """Stages and blocks by rank, then seconds and memory by rank."""
    limit_bytes = plan.estimate.memory_limit_bytes
    groups = _alike(_ranks(plan), limit_bytes)
    note = (
        f"{plan.estimate.stages[0].devices} devices a rank; forward and backward of one "
        "microbatch; held: the most microbatches whose activations it keeps; full bar: "
        f"{units.nbytes(limit_bytes)} limit"
    )
    return Group(
        _contents(plan, groups),
        Padding(_figures(groups, limit_bytes), (1, 0, 0, 0)),
        Text(note, style="dim"),
    )


def _ranks(plan: Plan) -> list[_Rank]:
    found = []
    for number, estimate in enumerate(plan.estimate.stages):
        own = [(index, stage) for index, stage in enumerate(plan.stages) if stage.rank == number]
        found.append(
            _Rank(
                number=number,
                stages=tuple(index for index, _ in own),
                blocks=tuple(block for _, stage in own for block in stage.blocks),
                outside=tuple(
                    stage.first.rpartition("/")[0] or stage.first
                    for _, stage in own
                    if stage.first not in stage.blocks
                ),
                is_last=any(index == len(plan.stages) - 1 for index, _ in own),
                estimate=estimate,
            )
        )
    return found


def _alike(ranks: Sequence[_Rank], limit_bytes: int) -> list[list[_Rank]]:
    """Neighbours in one group where all that is shown of them is the same."""
    groups: list[list[_Rank]] = []
    shown_before = None
    for rank in ranks:
        shown = _cells(rank.estimate, limit_bytes), len(rank.blocks), rank.outside, rank.is_last
        if shown == shown_before:
            groups[-1].append(rank)
        else:
            groups.append([rank])
        shown_before = shown
    return groups


def _contents(plan: Plan, groups: Sequence[Sequence[_Rank]]) -> Table:
    blocks = [block for region in plan.regions for block in region.blocks]
    table = _table("rank", "stages", "runs")
    for group in groups:
        inside = named_blocks([block for rank in group for block in rank.blocks], blocks)
        parts = [*(name for rank in group for name in rank.outside), *([inside] if inside else [])]
        text = ", ".join(parts) or "nothing"
        if len(group) > 1:
            text += f" ({len(group[0].blocks)} blocks a rank)"
        if group[-1].is_last:
            text += ", to the end of the model"
        stages = ranges([stage for rank in group for stage in rank.stages])
        table.add_row(_numbers(group), stages, Text(text))
    return table


def _figures(groups: Sequence[Sequence[_Rank]], limit_bytes: int) -> Table:
    table = _table("rank", "compute", "forward", "backward", "bubble", "held", "memory", "", "")
    for column in table.columns[1:-1]:
        column.justify = "right"
        column.no_wrap = True
    table.columns[-1].width = _BAR_WIDTH
    for group in groups:
        estimate = group[0].estimate
        used = estimate.memory.total / limit_bytes
        bar = Bar(used, style="cyan" if used <= 1 else "red")
        table.add_row(_numbers(group), *_cells(estimate, limit_bytes), bar)
    return table


def _cells(estimate: StageEstimate, limit_bytes: int) -> tuple[str, ...]:
    return (
        units.seconds(estimate.compute_s),
        units.seconds(estimate.forward_s),
        units.seconds(estimate.backward_s),
        units.seconds(estimate.bubble_s),
        str(estimate.held_microbatches),
        units.nbytes(estimate.memory.total),
        units.percent(estimate.memory.total / limit_bytes),
    )


def _numbers(group: Sequence[_Rank]) -> str:
    return ranges([rank.number for rank in group])


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name)
    return table
