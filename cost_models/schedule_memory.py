"""How many microbatches each stage holds activations of: from their F to their backward.

After forward j of rank r (of v stages, in rounds of q; see ``schedules``) its first
``j - warmup`` backwards have run, and r fewer W. With one stage per rank that is
``min(m, p - r)`` microbatches under 1F1B, and under interleaved 1F1B at most
``min(m v, 2 (p - 1 - r) + (v - 1) q + 1)`` over all stages of a rank (Narayanan et al. 2021,
section 2.2).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cost_models.schedules import PipelineShape, rank_actions

Counts = NDArray[np.int64]


def held_microbatches(shape: PipelineShape, *, until_weight: bool = False) -> Counts:
    """Microbatches that each stage holds, at all moments when its rank could hold most.

    Args:
        shape: the schedule and its sizes.
        until_weight: counted until W has run (what the weights' gradients need), not until the
            gradient of the inputs; the two differ where the schedule splits the backward.

    Returns:
        Array of shape (moments, stages); the moments are those right after a forward, each rank's
        own.
    """
    if shape.schedule == "zbv":
        return _counted(shape, until_weight=until_weight)
    shape_of_ranks = (1, 1, shape.ranks)
    rank = np.arange(shape.ranks).reshape(shape_of_ranks)
    local = np.arange(shape.stages_per_rank)[None, :, None]
    warmup = (shape.stages_per_rank - 1) * shape.round_microbatches
    warmup = warmup + shape.warmup_step * (shape.ranks - 1 - rank)
    if shape.schedule == "gpipe":
        warmup = np.full(shape_of_ranks, shape.microbatches)
    forwards = np.arange(1, _moments(shape, int(warmup.max())) + 1)[:, None, None]
    backwards = np.maximum(forwards - 1 - warmup, 0)
    if until_weight and shape.splits_backward:
        backwards = np.maximum(backwards - rank, 0)
    held = _of_local(shape, forwards, local) - _of_local(
        shape, backwards, shape.stages_per_rank - 1 - local
    )
    return held.reshape(len(forwards), shape.stages)


def peak_held(
    shape: PipelineShape, per_microbatch: Sequence[float], *, until_weight: bool = False
) -> list[float]:
    """The most that each rank holds at once, all its stages together.

    Less than the sum of its stages' peaks where those come at different times.

    Args:
        shape: the schedule and its sizes.
        per_microbatch: what one microbatch takes in each stage, say bytes of activations.
        until_weight: as in ``held_microbatches``.
    """
    held = held_microbatches(shape, until_weight=until_weight) * np.asarray(per_microbatch)
    stages = [[s for s in range(shape.stages) if shape.rank_of(s) == r] for r in range(shape.ranks)]
    return [float(held[:, of_rank].sum(axis=1).max()) for of_rank in stages]


def _moments(shape: PipelineShape, warmup: int) -> int:
    """Forwards after which what a rank holds repeats itself."""
    period = shape.round_microbatches * shape.stages_per_rank if shape.stages_per_rank > 1 else 1
    behind = shape.ranks if shape.splits_backward else 0
    return min(shape.microbatches * shape.stages_per_rank, warmup + behind + period)


def _of_local(shape: PipelineShape, count: Counts, local: Counts) -> Counts:
    """Of a rank's first ``count`` actions of a kind, those of the ``local``-th stage in a turn."""
    in_round = shape.round_microbatches * shape.stages_per_rank
    turn, rest = np.divmod(count, in_round)
    rest = np.clip(rest - local * shape.round_microbatches, 0, shape.round_microbatches)
    return turn * shape.round_microbatches + rest


def _counted(shape: PipelineShape, *, until_weight: bool) -> Counts:
    """By running through the actions."""
    held = np.zeros((shape.microbatches * shape.stages_per_rank, shape.stages), dtype=np.int64)
    for rank in range(shape.ranks):
        now = np.zeros(shape.stages, dtype=np.int64)
        of_rank = [stage for stage in range(shape.stages) if shape.rank_of(stage) == rank]
        moment = 0
        for kind, stage, _ in rank_actions(shape, rank):
            if kind == "F":
                now[stage] += 1
                held[moment, of_rank] = now[of_rank]
                moment += 1
            elif kind == ("W" if until_weight else "I"):
                now[stage] -= 1
    return held
