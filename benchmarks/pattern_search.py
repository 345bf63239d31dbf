"""A descent without derivatives, for losses of a few constants that have kinks.

It tries steps along every axis and along random directions and halves them when they stop paying.
Fixed random numbers: it finds the same point each time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

FIRST_STEP, LAST_STEP = 0.4, 0.004
ENOUGH = 0.999


def pattern_search(
    objective: Callable[[np.ndarray], float],
    point: np.ndarray,
    top: np.ndarray,
    random: np.random.Generator,
    *,
    first_step: float = FIRST_STEP,
    last_step: float = LAST_STEP,
) -> np.ndarray:
    """The best point found from a start, at or below ``top``.

    Args:
        objective: to be made small; infinite where a point is not allowed.
        point: the start.
        top: the largest value of every coordinate.
        random: source of directions.
        first_step, last_step: where the step begins, and below which the search ends.
    """
    lowest, step = objective(point), first_step
    while step > last_step:
        axes = np.eye(len(point))
        mixed = random.standard_normal((len(point), len(point)))
        mixed /= np.linalg.norm(mixed, axis=1, keepdims=True)
        before = lowest
        for direction in np.concatenate([axes, -axes, mixed, -mixed]):
            trial = np.minimum(point + step * direction, top)
            value = objective(trial)
            if value < lowest:
                lowest, point = value, trial
        if lowest > before * ENOUGH:
            step /= 2
    return point
