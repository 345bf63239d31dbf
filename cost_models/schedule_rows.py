"""What simulations by slots share: seconds of stages as arrays, and which slots say how it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cost_models.schedule_slots import Floats, Ints, Layout
from cost_models.schedule_times import StageTimes
from cost_models.schedules import PipelineShape


@dataclass(frozen=True, kw_only=True, slots=True)
class StageSeconds:
    """Seconds of all stages, arrays of shape (stages,).

    Attributes:
        forward: F.
        backward: B, or I where the schedule splits the backward.
        weight: W; 0 where the schedule does not split the backward.
        send_forward, send_backward: messages; 0 out of the model and where there is one rank.
    """

    forward: Floats
    backward: Floats
    weight: Floats
    send_forward: Floats
    send_backward: Floats


def stage_seconds(shape: PipelineShape, stages: Sequence[StageTimes]) -> StageSeconds:
    """The seconds of stages as the schedule uses them."""
    columns = np.array(
        [
            (
                stage.forward_s,
                stage.backward_input_s,
                stage.backward_weight_s,
                stage.send_forward_s,
                stage.send_backward_s,
            )
            for stage in stages
        ]
    ).T.copy()
    forward, backward, weight, send_forward, send_backward = columns
    if not shape.splits_backward:
        backward += weight
        weight[:] = 0.0
    if shape.ranks == 1:
        columns[3:] = 0.0
    send_forward[-1] = send_backward[0] = 0.0
    return StageSeconds(
        forward=forward,
        backward=backward,
        weight=weight,
        send_forward=send_forward,
        send_backward=send_backward,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Endings:
    """Where the last backward of each stage, and the last action of each rank, end.

    Attributes:
        stage_slot, stage_after_s: of shape (stages,): seconds behind the B (or I) of that slot.
        rank_slot, rank_after_s: of shape (ranks,): seconds behind the rank's last B (or I).
    """

    stage_slot: Ints
    stage_after_s: Floats
    rank_slot: Ints
    rank_after_s: Floats

    def stage_end_s(self, end_s: Floats) -> list[float]:
        """From the ends of the backwards of all slots, of shape (slots, ranks)."""
        rank = np.arange(len(self.stage_slot)) % len(self.rank_slot)
        return (end_s[self.stage_slot, rank] + self.stage_after_s).tolist()

    def rank_end_s(self, end_s: Floats) -> list[float]:
        """From the ends of the backwards of all slots, of shape (slots, ranks)."""
        rank = np.arange(len(self.rank_slot))
        return (end_s[self.rank_slot, rank] + self.rank_after_s).tolist()


def endings(layout: Layout, seconds: StageSeconds) -> Endings:
    """The endings of a schedule.

    Where the backward is split, W runs r backwards behind I, and those that are left then run one
    after the other.
    """
    shape = layout.shape
    ranks = np.arange(shape.ranks)
    rank = np.arange(shape.stages) % shape.ranks
    final = shape.microbatches * shape.stages_per_rank - 1
    last = final - np.arange(shape.stages) // shape.ranks * shape.round_microbatches
    behind = rank if shape.splits_backward else 0
    after_s = seconds.weight.copy()
    rank_after_s = np.zeros(shape.ranks)
    if shape.splits_backward:
        for r in range(shape.ranks):
            left = max(0, final - r)  # W from this place on run behind the last I
            local = layout.backward_local(np.arange(left, final + 1))
            ends = np.cumsum(seconds.weight[local * shape.ranks + r])
            rank_after_s[r] = ends[-1]
            of_rank = slice(r, None, shape.ranks)
            late = last[of_rank] >= left
            after_s[of_rank][late] = ends[last[of_rank][late] - left]
    stage_place = np.minimum(last + behind, final)
    return Endings(
        stage_slot=layout.backward_slot(stage_place, rank),
        stage_after_s=after_s,
        rank_slot=layout.backward_slot(np.full(shape.ranks, final), ranks),
        rank_after_s=rank_after_s,
    )
