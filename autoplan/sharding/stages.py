"""Where the stages that a plan names begin in a model's row of items."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.errors import PlanError
from autoplan.plan import StagePlan
from autoplan.trace.stack import Stack


def stage_starts(stack: Stack, stages: Sequence[StagePlan]) -> list[int]:
    """Number of the first item of every stage; without stages there is one of all items.

    Raises:
        PlanError: when the stages are no ranges of the model in order, or have other blocks.
    """
    if not stages:
        return [0]
    number = {item.name: index for index, item in enumerate(stack.items)}
    for stage in stages:
        if stage.first not in number:
            raise PlanError(f"a stage begins at {stage.first!r}, which begins no part of the model")
    starts = [number[stage.first] for stage in stages]
    if starts[0] != 0 or starts != sorted(set(starts)):
        raise PlanError(
            "the stages do not cover the model in order: the first must begin at "
            f"{stack.items[0].name!r}, and each behind the one before"
        )
    for stage, start, end in zip(stages, starts, [*starts[1:], len(stack.items)], strict=True):
        blocks = tuple(item.name for item in stack.items[start:end] if item.kind)
        if blocks != stage.blocks:
            raise PlanError(
                f"the stage that begins at {stage.first!r} has the blocks {', '.join(blocks)}, "
                f"but the plan says {', '.join(stage.blocks)}; plan this model again"
            )
    return starts
