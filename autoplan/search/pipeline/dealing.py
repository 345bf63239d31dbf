"""From the columns that each rank has to the stages of the pipeline, in the model's order.

With several stages a rank, its items are dealt to them in order (``objectives.dealt``). Columns
that keep most go to its last stages, whose microbatches are held for the shortest time.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from autoplan.search.pipeline.objectives import dealt
from autoplan.search.pipeline.whole import StageContent
from autoplan.search.regions.column import Column
from cost_models.schedules import PipelineShape


def stages_of(
    shape: PipelineShape, cuts: Sequence[int], columns: Sequence[Sequence[Column]]
) -> tuple[StageContent, ...]:
    """The stages of a plan.

    Args:
        cuts: where the items of each rank begin, and the number of all items.
        columns: of each rank's items, in order.
    """
    if shape.stages_per_rank == 1:
        return tuple(
            StageContent(first=first, columns=tuple(row))
            for first, row in zip(cuts, columns, strict=False)
        )
    sizes = [dealt(stop - first, shape.stages_per_rank) for first, stop in _pairs(cuts)]
    found, first = [], 0
    taken = [0] * shape.ranks
    for stage in range(shape.stages):
        rank = shape.rank_of(stage)
        size = sizes[rank][stage // shape.ranks]
        of_rank = columns[rank]
        found.append(
            StageContent(first=first, columns=tuple(of_rank[taken[rank] : taken[rank] + size]))
        )
        taken[rank] += size
        first += size
    return tuple(found)


def _pairs(cuts: Sequence[int]) -> list[tuple[int, int]]:
    return list(itertools.pairwise(cuts))
