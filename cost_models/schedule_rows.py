"""Costs of a schedule slot by slot, and what the clocks of the slots say at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.schedule_slots import Actions, Layout
from cost_models.schedule_times import StageTimes

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Seconds of what each rank runs in each slot, arrays of shape (slots, ranks).

    Attributes:
        forward_s, backward_s: of F, and of B or I; 0 where nothing runs.
        weight_s: of the W behind the slot's backward; 0 where the schedule does not split it.
    """

    layout: Layout
    stages: Sequence[StageTimes]
    forwards: Actions
    backwards: Actions
    forward_s: Floats
    backward_s: Floats
    weight_s: Floats

    def last_backward_end_s(self, backward_end_s: Floats, clock_s: Floats) -> list[float]:
        """When each stage's last backward ends, from the ends of B and the clocks behind W."""
        shape = self.layout.shape
        ends = [0.0] * shape.stages
        for stage in range(shape.stages):
            rank = stage % shape.ranks
            place = self._last_place(stage)
            if not shape.splits_backward:
                ends[stage] = backward_end_s[self.layout.backward_slot(place, rank), rank]
            elif place + rank < self._places:
                ends[stage] = clock_s[self.layout.backward_slot(place + rank, rank), rank]
            else:
                tail = self._tail_s(rank)[: rank + place - self._places + 1]
                ends[stage] = clock_s[-1, rank] + sum(tail)
        return [float(end) for end in ends]

    def rank_end_s(self, clock_s: Floats) -> list[float]:
        """When each rank's last action ends, from the clocks behind W."""
        shape = self.layout.shape
        if not shape.splits_backward:
            return clock_s[-1].tolist()
        return [float(clock_s[-1, rank]) + sum(self._tail_s(rank)) for rank in range(shape.ranks)]

    @property
    def _places(self) -> int:
        return self.layout.shape.microbatches * self.layout.shape.stages_per_rank

    def _last_place(self, stage: int) -> int:
        """The place of a stage's last microbatch among its rank's backwards."""
        shape = self.layout.shape
        turns_after = stage // shape.ranks
        return self._places - 1 - turns_after * shape.round_microbatches

    def _tail_s(self, rank: int) -> list[float]:
        """The W that are left after a rank's last I: of its last ``rank`` backwards."""
        return [
            self.stages[stage].backward_weight_s
            for stage in (
                _weight_stage(self.layout, np.arange(max(0, self._places - rank), self._places))
                + rank
            ).tolist()
        ]


def _weight_stage(layout: Layout, place: NDArray[np.int64]) -> NDArray[np.int64]:
    """The stage of rank 0 that has a backward in these places."""
    shape = layout.shape
    turn = place // shape.round_microbatches
    return (shape.stages_per_rank - 1 - turn % shape.stages_per_rank) * shape.ranks


def stage_rows(layout: Layout, stages: Sequence[StageTimes]) -> Rows:
    """The seconds of every slot and rank."""
    shape = layout.shape
    forwards, backwards = layout.forwards(), layout.backwards()
    forward_s = np.array([stage.forward_s for stage in stages])
    backward_s = np.array([stage.backward_input_s for stage in stages])
    weight_s = np.array([stage.backward_weight_s for stage in stages])
    after = np.zeros((layout.slots, shape.ranks))
    if shape.splits_backward:
        rank = np.arange(shape.ranks)
        place = backwards.place - rank
        stage = _weight_stage(layout, place) + rank
        after = np.where(backwards.runs & (place >= 0), weight_s[stage], 0.0)
    else:
        backward_s = backward_s + weight_s
    return Rows(
        layout=layout,
        stages=stages,
        forwards=forwards,
        backwards=backwards,
        forward_s=np.where(forwards.runs, forward_s[forwards.stage], 0.0),
        backward_s=np.where(backwards.runs, backward_s[backwards.stage], 0.0),
        weight_s=after,
    )
