"""Schedules laid out in slots of lockstep, the same on all ranks: what can be simulated by rows.

With r a rank, j the place of a forward among the forwards of its rank and k that of a backward
among the backwards, forward j runs in slot ``stride j + r`` and backward k in slot
``stride k + first_backward - lag r``. Rounds of fewer microbatches than ranks are stretched to p,
for a microbatch needs p slots to come back to its rank's next stage; the places in between stay
empty, the order of the actions is that of ``schedules.rank_actions``. Each action then needs what
was computed in earlier slots, but for lag 0, where a gradient passes all ranks within its slot.

Where F and B share a slot (stride 1), F comes first; W follows the B of its slot.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.schedules import PipelineShape

_Ints = NDArray[np.int64]
_Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class Actions:
    """One kind of action of all slots and ranks, arrays of shape (slots, ranks).

    Attributes:
        stage: the stage, any stage of the rank where nothing runs.
        runs: whether an action runs.
        place: its place among the actions of its kind and rank, counted without empty places.
    """

    stage: _Ints
    runs: _Bools
    place: _Ints


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Where the actions of a schedule lie; see the module's text.

    Attributes:
        round_places: places of a round in one stage: its microbatches, or p if those are fewer.
    """

    shape: PipelineShape
    stride: int
    lag: int
    first_backward: int
    round_places: int

    @property
    def places(self) -> int:
        """Places of the forwards of a rank, empty ones with them; backwards have as many."""
        return self.shape.rounds * self.shape.stages_per_rank * self.round_places

    @property
    def slots(self) -> int:
        return self.stride * (self.places - 1) + self.first_backward + 1

    def forwards(self) -> Actions:
        slot, rank = self._grid()
        return self._actions(slot - rank, rank, backward=False)

    def backwards(self) -> Actions:
        slot, rank = self._grid()
        return self._actions(slot - self.first_backward + self.lag * rank, rank, backward=True)

    def backward_slot(self, place: int, rank: int) -> int:
        """The slot of a rank's backward, by its place counted without empty places."""
        turn, rest = divmod(place, self.shape.round_microbatches)
        return (
            self.stride * (turn * self.round_places + rest) + self.first_backward - self.lag * rank
        )

    def _grid(self) -> tuple[_Ints, _Ints]:
        return np.arange(self.slots)[:, None], np.arange(self.shape.ranks)[None, :]

    def _actions(self, scaled: _Ints, rank: _Ints, *, backward: bool) -> Actions:
        """Actions whose place is ``scaled / stride``; of fractions of a place nothing runs."""
        shape = self.shape
        place = scaled // self.stride
        turn, rest = np.divmod(place, self.round_places)
        local = turn % shape.stages_per_rank
        if backward:
            local = shape.stages_per_rank - 1 - local
        runs = (place >= 0) & (place < self.places) & (rest < shape.round_microbatches)
        if self.stride > 1:
            runs &= scaled % self.stride == 0
        return Actions(
            stage=local * shape.ranks + rank,
            runs=runs,
            place=turn * shape.round_microbatches + rest,
        )


def _round_places(shape: PipelineShape) -> int:
    comes_back = shape.ranks if shape.stages_per_rank > 1 else 0
    return max(shape.round_microbatches, comes_back)


def overlapped_layout(shape: PipelineShape) -> Layout:
    """The fewest slots, for messages beside compute."""
    places = _round_places(shape)
    warmup = (shape.stages_per_rank - 1) * places
    if shape.schedule == "gpipe":
        warmup += shape.microbatches
    # Where ranks differ by one forward of warmup, all ranks run backward k in the same slot.
    lag = 0 if shape.warmup_step == 1 and shape.schedule != "gpipe" else 1
    return Layout(
        shape=shape,
        stride=1,
        lag=lag,
        first_backward=warmup + (1 + lag) * (shape.ranks - 1),
        round_places=places,
    )


def exchange_layout(shape: PipelineShape) -> Layout:
    """Slots that end with an exchange of messages, as Megatron has it without overlap.

    Interleaved 1F1B exchanges once after a forward and a backward
    (``send_forward_backward_recv_forward_backward``), 1F1B after each
    (``send_forward_recv_backward``, ``send_backward_recv_forward``).
    """
    if shape.schedule in ("gpipe", "interleaved_1f1b"):
        return overlapped_layout(shape)
    places = _round_places(shape)
    return Layout(
        shape=shape,
        stride=2,
        lag=1,
        first_backward=2 * (shape.stages_per_rank - 1) * places + 2 * shape.ranks - 1,
        round_places=places,
    )
