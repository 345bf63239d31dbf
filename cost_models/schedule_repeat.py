"""Slots of a schedule that do what others did a period before, and clocks that go on so."""

from __future__ import annotations

import numpy as np

from cost_models.schedule_slots import Floats


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


def repeat(clocks: Floats, done: int, stop: int, period: int, since_s: float) -> None:
    """Fill rows ``done`` to ``stop`` with those of the period before, ``since_s`` later each time.

    Args:
        clocks: of shape (slots, columns), filled in place.
        done: rows that are there, ``period`` of them or more.
        stop: behind the last row to fill.
        since_s: seconds of one period.
    """
    whole = (stop - done) // period
    turns = clocks[done : done + whole * period].reshape(whole, period, clocks.shape[1])
    later_s = since_s * np.arange(1, whole + 1)[:, None, None]
    np.add(clocks[done - period : done], later_s, out=turns)
    rest = done + whole * period
    clocks[rest:stop] = clocks[rest - period : stop - period] + since_s
