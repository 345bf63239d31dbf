"""The ranks of a pipeline: what each of them runs, and what that takes.

Neighbours of which every shown figure is the same are one row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from autoplan.plan import Plan, StageEstimate
from autoplan.report import units
from autoplan.report.bars import Bar
from autoplan.report.fold import named_blocks, ranges
from autoplan.report.tables import plain_table

_BAR_WIDTH = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Rank:
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
    groups = rank_groups(plan)
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


def rank_groups(plan: Plan) -> list[list[Rank]]:
    """Ranks in order, neighbours together where all that is shown of them is the same."""
    return _alike(_ranks(plan), plan.estimate.memory_limit_bytes)


def rank_rows(plan: Plan, groups: Sequence[Sequence[Rank]]) -> Iterator[tuple[str, ...]]:
    """Numbers, stages, contents, and seconds of each group; then the microbatches that it holds."""
    for group in groups:
        cells = _cells(group[0].estimate, plan.estimate.memory_limit_bytes)
        yield _numbers(group), _stages(group), _runs(plan, group), *cells[:5]


def _ranks(plan: Plan) -> list[Rank]:
    found = []
    for number, estimate in enumerate(plan.estimate.stages):
        own = [(index, stage) for index, stage in enumerate(plan.stages) if stage.rank == number]
        found.append(
            Rank(
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


def _alike(ranks: Sequence[Rank], limit_bytes: int) -> list[list[Rank]]:
    """Neighbours in one group where all that is shown of them is the same."""
    groups: list[list[Rank]] = []
    shown_before = None
    for rank in ranks:
        shown = _cells(rank.estimate, limit_bytes), len(rank.blocks), rank.outside, rank.is_last
        if shown == shown_before:
            groups[-1].append(rank)
        else:
            groups.append([rank])
        shown_before = shown
    return groups


def _contents(plan: Plan, groups: Sequence[Sequence[Rank]]) -> Table:
    table = _table("rank", "stages", "runs")
    for group in groups:
        table.add_row(_numbers(group), _stages(group), Text(_runs(plan, group)))
    return table


def _stages(group: Sequence[Rank]) -> str:
    return ranges([stage for rank in group for stage in rank.stages])


def _runs(plan: Plan, group: Sequence[Rank]) -> str:
    """Blocks, and modules at which parts of the root begin."""
    blocks = [block for region in plan.regions for block in region.blocks]
    inside = named_blocks([block for rank in group for block in rank.blocks], blocks)
    parts = [*(name for rank in group for name in rank.outside), *([inside] if inside else [])]
    text = ", ".join(parts) or "nothing"
    if len(group) > 1:
        text += f" ({len(group[0].blocks)} blocks a rank)"
    return text + (", to the end of the model" if group[-1].is_last else "")


def _figures(groups: Sequence[Sequence[Rank]], limit_bytes: int) -> Table:
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


def _numbers(group: Sequence[Rank]) -> str:
    return ranges([rank.number for rank in group])


def _table(*columns: str) -> Table:
    table = plain_table()
    for name in columns:
        table.add_column(name)
    return table
