"""Stages of a pipeline, by where they begin."""

from __future__ import annotations

from collections.abc import Iterable

from autoplan.plan import StagePlan
from autoplan.trace.graph import OpGraph
from autoplan.trace.stack import stack_of


def stages_at(
    graph: OpGraph, firsts: Iterable[int], ranks: int | None = None
) -> tuple[StagePlan, ...]:
    """Stages that begin at these items, dealt out to ``ranks`` ranks in turn; None: one each."""
    items = stack_of(graph).items
    firsts = list(firsts)
    return tuple(
        StagePlan(
            rank=index % (ranks or len(firsts)),
            first=items[start].name,
            blocks=tuple(item.name for item in items[start:end] if item.kind),
        )
        for index, (start, end) in enumerate(zip(firsts, [*firsts[1:], len(items)], strict=True))
    )
