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
from numpy.lib.stride_tricks import as_strided
from numpy.typing import ArrayLike, NDArray

from cost_models.schedules import PipelineShape

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


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

    @property
    def period(self) -> int:
        """Slots after which the ranks' stages come in the same order again."""
        stages = self.shape.stages_per_rank
        return self.stride * (stages * self.round_places if stages > 1 else 1)

    def of_forwards(self, of_stage: ArrayLike, elsewhere: ArrayLike) -> Floats:
        """Values of stages where their forwards run, of shape (slots, ranks).

        Args:
            of_stage: of shape (stages,).
            elsewhere: of shape (ranks,) or a number, for ranks in slots without a forward.
        """
        return self._spread(of_stage, elsewhere, first=0, lag=-1, backward=False)

    def of_backwards(self, of_stage: ArrayLike, elsewhere: ArrayLike) -> Floats:
        """Values of stages where their backwards (B or I) run, as ``of_forwards``."""
        first, lag = self.first_backward, self.lag
        return self._spread(of_stage, elsewhere, first=first, lag=lag, backward=True)

    def of_weights(self, of_stage: ArrayLike) -> Floats:
        """Values of stages where their W run behind a B, else 0: r backwards behind their own."""
        spread = np.zeros((self.slots, self.shape.ranks))
        values = self._by_local(of_stage)
        places = np.arange(self.shape.microbatches * self.shape.stages_per_rank)
        local = self.backward_local(places)
        for rank in range(self.shape.ranks):
            slots = self.backward_slot(places[rank:], rank)
            spread[slots, rank] = values[local[: len(slots)], rank]
        return spread

    def backward_local(self, place: Ints) -> Ints:
        """Which of its rank's stages, from 0, has a backward in a place (without empty ones)."""
        turn = place // self.shape.round_microbatches
        return self.shape.stages_per_rank - 1 - turn % self.shape.stages_per_rank

    def backward_slot(self, place: Ints, rank: Ints | int) -> Ints:
        """The slot of a rank's backward, by its place counted without empty ones."""
        turn, rest = np.divmod(place, self.shape.round_microbatches)
        place = turn * self.round_places + rest
        return self.stride * place + self.first_backward - self.lag * rank

    def _by_local(self, of_stage: ArrayLike) -> Floats:
        """Values of stages by rank and place on it, of shape (stages_per_rank, ranks)."""
        return np.asarray(of_stage, dtype=float).reshape(-1, self.shape.ranks)

    def _spread(
        self, of_stage: ArrayLike, elsewhere: ArrayLike, *, first: int, lag: int, backward: bool
    ) -> Floats:
        shape = self.shape
        spread = np.empty((self.slots, shape.ranks))
        spread[:] = elsewhere
        turns = shape.rounds * shape.stages_per_rank
        row, column = spread.strides
        by_place = as_strided(  # [turn, microbatch of the round, rank]
            spread[first:],
            shape=(turns, shape.round_microbatches, shape.ranks),
            strides=(self.round_places * self.stride * row, self.stride * row, column - lag * row),
        )
        local = np.arange(turns) % shape.stages_per_rank
        if backward:
            local = shape.stages_per_rank - 1 - local
        by_place[:] = self._by_local(of_stage)[local, None, :]
        return spread


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
