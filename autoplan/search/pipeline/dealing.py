"""From the columns that each rank has to the stages of the pipeline, in the model's order.

With several stages a rank, its items are dealt to them in order (``objectives.dealt``). Columns
that keep most go to its last stages, whose microbatches are held for the shortest time.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.search.pipeline.objectives import Row
from autoplan.search.pipeline.whole import StageContent
from autoplan.search.regions.column import Column


def stages_of(
    row: Row, cuts: Sequence[int], columns: Sequence[Sequence[Column]]
) -> tuple[StageContent, ...]:
    """The stages of a plan.

    Args:
        row: the items and their schedule.
        cuts: where the items of each rank begin, and the number of all items.
        columns: of each rank's items, in order.
    """
    shape = row.shape
    if shape.stages_per_rank == 1:
        return tuple(
            StageContent(first=first, columns=tuple(row))
            for first, row in zip(cuts, columns, strict=False)
        )
    sizes = [row.sizes(rank) for rank in range(shape.ranks)]
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
