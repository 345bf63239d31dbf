"""Longest paths through the slots of a simulated schedule, followed backward.

What an action waited for is told from the clocks of ``schedule_wavefront`` for all slots at once;
only the actions of the path are then visited. Slots without an action pass on their rank's clock,
and with it the path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cost_models.schedule_paths import StageCounts
from cost_models.schedule_rows import endings
from cost_models.schedule_slots import Ints, Layout
from cost_models.schedule_times import StageTimes
from cost_models.schedule_wavefront import Wavefront, arrived, run_wavefront
from cost_models.schedules import PipelineShape


class CriticalRows:
    """A step run through for all its times; see ``critical_path``. Not for ``zbv``.

    Attributes:
        stage_end_s: when each stage's last backward ends.
    """

    def __init__(self, shape: PipelineShape, stages: Sequence[StageTimes]) -> None:
        self._front = run_wavefront(shape, stages)
        self._layout = self._front.layout
        self._endings = endings(self._layout, self._front.seconds)
        self.stage_end_s = self._endings.stage_end_s(self._front.backward_end_s())

    def path_to(self, stage: int) -> StageCounts:
        """What is counted along a longest path to the end of a stage's last backward."""
        shape = self._layout.shape
        forward, backward = _ways(self._front)
        weight = _weights_behind(self._layout, stage)
        weights = self._layout.of_weights(np.arange(1, shape.stages + 1)).astype(int) - 1
        slot, rank = int(self._endings.stage_slot[stage]), stage % shape.ranks
        while True:
            slot, rank = backward.to_clock(slot, rank)
            slot, rank = forward.to_clock(slot, rank)
            if slot == 0:
                break
            slot -= 1
            if shape.splits_backward and weights[slot, rank] >= 0:
                weight[weights[slot, rank]] += 1
        inputs = np.array(backward.runs)
        to_next, to_before = np.array([forward.sends, backward.sends]) * (shape.ranks > 1)
        to_next[-1] = to_before[0] = 0
        return StageCounts(
            forward=np.array(forward.runs),
            backward_input=inputs,
            backward_weight=weight if shape.splits_backward else inputs,
            forward_sends=to_next,
            backward_sends=to_before,
        )


def _weights_behind(layout: Layout, stage: int) -> Ints:
    """By stage, the W between the B of the slot that a stage ends with and the end of the stage.

    W runs r backwards behind I; those that are left run one after the other, behind the last I.
    """
    shape, counts = layout.shape, np.zeros(layout.shape.stages, dtype=np.int64)
    local, rank = divmod(stage, shape.ranks)
    final = shape.microbatches * shape.stages_per_rank - 1
    last = final - local * shape.round_microbatches
    first = min(last, max(0, final - rank))
    run = layout.backward_local(np.arange(first, last + 1))
    np.add.at(counts, run * shape.ranks + rank, 1)
    return counts


@dataclass(frozen=True, kw_only=True, slots=True)
class _Way:
    """The forwards, or the backwards: what each waited for, and what the path counts of them.

    Attributes:
        stage: by slot and rank; -1 where there is none.
        for_message: by slot and rank, whether it waited for its input and not for its rank.
        for_queue: by slot and rank, whether its message waited for the one before; empty where no
            message waits.
        step: to the next rank in the direction that inputs come from: 1 or -1.
        slots_back: slots between an action and the one of the rank there that its input is from.
        slots_around: the same from one end of the ranks to the other.
        runs, sends: what is counted by stage, filled by ``to_clock``.
    """

    stage: list[list[int]]
    for_message: list[list[bool]]
    for_queue: list[list[bool]]
    step: int
    slots_back: int
    slots_around: int
    runs: list[int]
    sends: list[int]

    def to_clock(self, slot: int, rank: int) -> tuple[int, int]:
        """Follow messages back to the slot and rank of an action that waited for its rank."""
        ranks = len(self.stage[0])
        while True:
            stage = self.stage[slot][rank]
            if stage >= 0:
                self.runs[stage] += 1
            if not self.for_message[slot][rank]:
                return slot, rank
            rank += self.step
            if 0 <= rank < ranks:
                slot -= self.slots_back
            else:
                slot, rank = slot - self.slots_around, rank % ranks
            self.sends[self.stage[slot][rank]] += 1
            while self.for_queue and self.for_queue[slot][rank]:
                slot -= 1
                if self.stage[slot][rank] >= 0:
                    self.sends[self.stage[slot][rank]] += 1


def _ways(front: Wavefront) -> tuple[_Way, _Way]:
    """Forwards and backwards of a step; an action waits for its rank where both come at once."""
    layout, lines, came_back = front.layout, front.lines, front.came_back
    count = layout.shape.stages
    forward = layout.of_forwards(np.arange(count), -1).astype(int)
    backward = layout.of_backwards(np.arange(count), -1).astype(int)
    f_in, b_in = arrived(front, lines.f_sent, lines.b_sent)
    f_waits = (forward > 0) & (f_in > lines.b[:-1, :-1] + lines.to_forward)
    b_waits = (backward >= 0) & (backward < count - 1)
    b_waits &= b_in > lines.f[1:, 1:] + lines.to_backward
    f_queues, b_queues = [], []
    if lines.f_sent is not lines.f:
        f_queues = (lines.f_sent[:-1, 1:] + lines.to_f_sent > lines.f[1:, 1:]).tolist()
        b_queues = (lines.b_sent[:-1, :-1] + lines.to_b_sent > lines.b[1:, :-1]).tolist()
    ways = (
        (forward, f_waits, f_queues, -1, 1, came_back.forward_lag + 1),
        (backward, b_waits, b_queues, 1, layout.lag, came_back.backward_lag + 1),
    )
    to_first, to_last = (
        _Way(
            stage=stage.tolist(),
            for_message=waits.tolist(),
            for_queue=queues,
            step=step,
            slots_back=slots_back,
            slots_around=slots_around,
            runs=[0] * count,
            sends=[0] * count,
        )
        for stage, waits, queues, step, slots_back, slots_around in ways
    )
    return to_first, to_last
