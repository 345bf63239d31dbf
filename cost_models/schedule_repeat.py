"""Schedules with fewer microbatches whose slots are those of longer ones, less whole periods.

Clocks that follow from those before by sums and maxima, and that have all moved on by the same time
over a period of equal slots, do so over each further one: such a steady state can be left out and
its time added.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cost_models.schedule_slots import Floats
from cost_models.schedules import PipelineShape, ScheduleError

WARM_ROUNDS = 2  # of as many microbatches as there are ranks, to come to a steady state


def shortened(shape: PipelineShape) -> PipelineShape | None:
    """The schedule with few microbatches; None where that has other slots, or not fewer.

    The forwards of ``gpipe`` all come before its backwards, so that it has no period.
    """
    if shape.schedule == "gpipe":
        return None
    unit = 1 if shape.schedule == "1f1b" else shape.round_microbatches
    units = -(-WARM_ROUNDS * shape.ranks // unit) + 1
    if units * unit >= shape.microbatches:
        return None
    try:
        short = replace(shape, microbatches=units * unit)
    except ScheduleError:
        return None
    return short if unit in (1, short.round_microbatches) else None


def longest_repetition(one: Floats, other: Floats, period: int) -> tuple[int, int]:
    """The longest run of rows that equal those a period before, in both arrays.

    Args:
        one: of shape (slots, ranks).
        other: as ``one``.
        period: rows.

    Returns:
        First row and the row behind the last; the same where there is none.
    """
    if period >= len(one):
        return 0, 0
    same = (one[period:] == one[:-period]).all(axis=1)
    same &= (other[period:] == other[:-period]).all(axis=1)
    edges = np.flatnonzero(np.diff(same, prepend=False, append=False))
    if not len(edges):
        return 0, 0
    starts, stops = edges[::2], edges[1::2]
    longest = int(np.argmax(stops - starts))
    return period + int(starts[longest]), period + int(stops[longest])
