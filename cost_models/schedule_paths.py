"""Paths through a schedule: lower bounds of its makespan that are linear in the stages' times.

An action waits for the one before it on its rank and, along a message, for its neighbour stage's
action on the same microbatch. Any path along these waits takes no longer than the step. For each
rank r one path is counted that passes through most of what r runs:

1. the first microbatch's forward through all stages, its backward from the last stage down to where
   r runs its first backward (``gpipe``: on r all forwards, then the last microbatch's);
2. what r runs from there, in its order;
3. the backward of the last microbatch from r down to stage 0, where the path ends.

Step 2 ends at r's last backward, and under ``interleaved_1f1b`` at that of its highest stage: the
chain of step 3 goes through all stages below it, each once. Where the backward is split, chains are
of I, and W of stage 0 ends the path; under ``zbv``, whose ranks end with many W, step 2 goes on to
r's last action and there is no step 3.

What all paths have in common is the *base*; a rank's *extra* is what its own path has beyond it, on
its own stages. So

    makespan >= base + max over r of extra_r

Under ``gpipe``, ``1f1b``, ``interleaved_1f1b`` and ``zero_bubble`` with one stage per rank, base
and extra are the whole path, and the base is every stage's F, I and messages once (and W once where
the backward is whole, else of stage 0 only). Under ``zbv`` and ``zero_bubble`` with more stages per
rank they are shorter: the other ranks whose I is in a path differ from rank to rank.

With equal stages and messages of 0 s the longest path is the makespan: (m v + p - 1) (F + B) where
the backward is whole (with rounds of p microbatches if v > 1), m (F + I + W) + (p - 1) (F + I - W)
for ``zero_bubble`` with m >= p and W <= I, and 6 m + p - 1 for ``zbv`` with equal F, I and W.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.schedule_times import StageTimes
from cost_models.schedules import PipelineShape

Counts = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StageCounts:
    """How often each stage's times are counted; arrays of shape (stages,).

    Attributes:
        forward, backward_input, backward_weight: actions; a whole backward counts in both latter.
        forward_sends, backward_sends: messages to the next stage and to the one before.
    """

    forward: Counts
    backward_input: Counts
    backward_weight: Counts
    forward_sends: Counts
    backward_sends: Counts

    def length(self, stages: Sequence[StageTimes]) -> float:
        """Seconds of all that is counted."""
        seconds = np.array(
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
        )
        counts = np.array(
            [
                self.forward,
                self.backward_input,
                self.backward_weight,
                self.forward_sends,
                self.backward_sends,
            ]
        )
        return float((counts.T * seconds).sum())


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SchedulePath(StageCounts):
    """What is counted along one rank's path.

    Attributes:
        rank: that the path is about.
        ends_at: stage at whose last backward the path ends: ``last_backward_end_s[ends_at]`` of a
            simulation is no less than the path's length, and what follows that backward adds to it.
        base: what the paths of all ranks count; the same object for all.
        extra: what this path counts beyond that on the rank's own stages.
    """

    rank: int
    ends_at: int
    base: StageCounts
    extra: StageCounts


def paths(shape: PipelineShape) -> tuple[SchedulePath, ...]:
    """The path of each rank, in order; times are those of messages beside compute.

    Args:
        shape: the schedule and its sizes.
    """
    lines = _Lines(shape)
    if shape.schedule == "gpipe":
        counts = lines.fill_and_drain()
    elif shape.schedule == "zbv":
        counts = lines.v_shaped()
    else:
        counts = lines.in_turn()
    base = [of.min(axis=0) for of in counts]
    extra = [np.where(lines.own, of - common, 0) for of, common in zip(counts, base, strict=True)]
    common = StageCounts(**_named(base))
    return tuple(
        SchedulePath(
            rank=rank,
            ends_at=rank if shape.schedule == "zbv" else 0,
            base=common,
            extra=StageCounts(**_named([of[rank] for of in extra])),
            **_named([of[rank] for of in counts]),
        )
        for rank in range(shape.ranks)
    )


def _named(counts: Sequence[Counts]) -> dict[str, Counts]:
    names = ("forward", "backward_input", "backward_weight", "forward_sends", "backward_sends")
    return dict(zip(names, counts, strict=True))


class _Lines:
    """Counts of all paths at once: arrays of shape (ranks, stages), a row for each rank's path."""

    def __init__(self, shape: PipelineShape) -> None:
        self.shape = shape
        self.rank = np.arange(shape.ranks)[:, None]
        self.stage = np.arange(shape.stages)
        self.local, self.of_rank = np.divmod(self.stage, shape.ranks)
        if shape.schedule == "zbv":
            self.of_rank = np.where(self.local, shape.ranks - 1 - self.of_rank, self.of_rank)
        self.own = self.of_rank == self.rank
        self.last = shape.stages_per_rank - 1
        crosses = self.of_rank[1:] != self.of_rank[:-1]
        once = np.ones((shape.ranks, 1), dtype=np.int64)
        self.to_next = once * np.append(crosses, False)
        self.to_before = once * np.append(False, crosses)

    def fill_and_drain(self) -> tuple[Counts, ...]:
        once = 1 + self.own * (self.shape.microbatches - 1)
        return once, once, once, self.to_next, self.to_before

    def v_shaped(self) -> tuple[Counts, ...]:
        """A rank's first I follows F of r + 1 microbatches on its way up, 2 p - 1 - r down."""
        shape, rank = self.shape, self.rank
        before = np.where(self.local, rank + 1, 2 * shape.ranks - 1 - rank)
        forward = 1 + self.own * np.maximum(shape.microbatches - before, 0)
        all_own = self.own * shape.microbatches
        above = self.stage > 2 * shape.ranks - 1 - rank
        return forward, all_own + above, all_own, self.to_next, self.to_before * above

    def in_turn(self) -> tuple[Counts, ...]:
        """One forward and one backward in turn, after ``warmup`` forwards (see ``schedules``)."""
        shape, rank = self.shape, self.rank
        total = shape.microbatches * shape.stages_per_rank
        warmup = self.last * shape.round_microbatches
        warmup = warmup + shape.warmup_step * (shape.ranks - 1 - rank)
        before = self._first(np.minimum(warmup + 1, total), self.local)
        forward = 1 + self.own * (shape.microbatches - before)
        from_last = self.last - self.local
        if not shape.splits_backward:
            run = self._first(total - self.last * shape.round_microbatches, from_last)
            chain = ~self.own | (self.local < self.last)
            whole = chain + self.own * run
            return forward, whole, whole, self.to_next, self.to_before
        above = (self.local == self.last) & (self.of_rank > rank)
        chain = above | ((self.local == 0) & (self.of_rank < rank))
        inputs = chain + self.own * shape.microbatches
        weights = self.own * self._first(np.maximum(total - 1 - rank, 0), from_last)
        weights = weights + (self.stage == 0)
        sends = above | ((self.local == 0) & (self.of_rank <= rank))
        return forward, inputs, weights, self.to_next, self.to_before * sends

    def _first(self, count: int | Counts, local: Counts) -> Counts:
        """Of a rank's first ``count`` actions of a kind, those of its ``local``-th stage."""
        of_turn = self.shape.round_microbatches
        turns, rest = np.divmod(count, of_turn * self.shape.stages_per_rank)
        return turns * of_turn + np.clip(rest - local * of_turn, 0, of_turn)
