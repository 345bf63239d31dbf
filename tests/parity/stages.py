"""Stages of a pipeline, by where they begin."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from autoplan.plan import StagePlan
from autoplan.trace.graph import OpGraph
from autoplan.trace.stack import stack_of


def stages_at(
    graph: OpGraph, firsts: Iterable[int], rank_of: Callable[[int], int] = lambda stage: stage
) -> tuple[StagePlan, ...]:
    """Stages that begin at these items, by default each on a rank of its own."""
    items = stack_of(graph).items
    firsts = list(firsts)
    return tuple(
        StagePlan(
            rank=rank_of(index),
            first=items[start].name,
            blocks=tuple(item.name for item in items[start:end] if item.kind),
        )
        for index, (start, end) in enumerate(zip(firsts, [*firsts[1:], len(items)], strict=True))
    )
