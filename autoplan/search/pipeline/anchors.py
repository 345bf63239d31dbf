"""Few ranks whose rates bound those of all ranks, so that menus are asked for them alone."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_CLOSE = 1e-9
_CLOSE_BELOW = 0.98


def anchored(rows: Floats) -> tuple[list[int], Floats]:
    """A few ranks, and a matrix that gives the rates of all ranks from theirs, never above.

    What counts for a rank is linear in its rates, so it is no less than the same mean of what
    counts for the few, and of any bounds of that.

    Args:
        rows: of shape (ranks, rates).

    Returns:
        The ranks, and the matrix of shape (ranks, as many).
    """
    anchors = [0]
    while anchors[-1] < len(rows) - 1:
        anchors.append(_reach(rows, anchors[-1]))
    mix = np.zeros((len(rows), len(anchors)))
    mix[anchors, range(len(anchors))] = 1.0
    for number, (first, stop) in enumerate(itertools.pairwise(anchors)):
        share = np.arange(1, stop - first) / (stop - first)
        mix[first + 1 : stop, number] = 1 - share
        mix[first + 1 : stop, number + 1] = share
    return anchors, mix


def _reach(rows: Floats, first: int) -> int:
    """The furthest rank such that all between have the rates on the line to it, or little more.

    So the slope of that line is between those to all ranks before.
    """
    inside = rows[first + 1 :]
    slack = _CLOSE * np.abs(inside)
    away = np.arange(1, len(inside) + 1)[:, None]
    slope = (inside - rows[first]) / away
    most = np.minimum.accumulate((inside + slack - rows[first]) / away)
    least = np.maximum.accumulate((_CLOSE_BELOW * inside - slack - rows[first]) / away)
    holds = ((slope[1:] <= most[:-1]) & (slope[1:] >= least[:-1])).all(axis=1)
    return first + 1 + int(np.flatnonzero(np.append(True, holds))[-1])
