"""A descent without derivatives, for losses of a few constants that have kinks.

It tries steps along every axis and along random directions and halves them when they stop paying.
Fixed random numbers: it finds the same point each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

SEED = 0
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


def fit_constants(
    loss: Callable[[Mapping[str, float]], float],
    start: Mapping[str, float],
    highest: Mapping[str, float],
    *,
    first_step: float,
    last_step: float,
    digits: int,
) -> dict[str, float]:
    """Positive constants that make a loss small, by a search over their logarithms.

    Args:
        loss: of the constants by name.
        start: where the search begins.
        highest: the largest value of those that have one.
        first_step, last_step: as in ``pattern_search``.
        digits: of the values returned.
    """

    def values(point: np.ndarray) -> dict[str, float]:
        return dict(zip(start, np.exp(point).tolist(), strict=True))

    best = pattern_search(
        lambda point: loss(values(point)),
        np.log(list(start.values())),
        np.log([highest.get(name, np.inf) for name in start]),
        np.random.default_rng(SEED),
        first_step=first_step,
        last_step=last_step,
    )
    return {name: float(f"{value:.{digits}g}") for name, value in values(best).items()}
