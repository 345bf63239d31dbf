"""Which choices prices may need: those of which no other one takes less of everything."""

from __future__ import annotations

import math

import numpy as np

from autoplan.search.regions.terms import Amounts, Mask

_FEW = 8
_FEW_PAIRS = 1 << 15
"""Choices, or pairs of them over all combinations, that are compared at once."""

_ROUNDED_BITS = 4
"""Last bits of amounts that make no difference; they come from the order of additions."""


def needed(amounts: Amounts, barred: Mask) -> Mask:
    """Which choices some prices may need, for each combination of other decisions.

    Args:
        amounts: of shape (amounts, choices, combinations), of at least one amount.
        barred: what cannot be, of shape (choices, combinations).

    Returns:
        Of each combination at least one choice; of equal ones the first.
    """
    layers = _rounded(np.where(barred, math.inf, amounts))
    is_few = len(barred) <= _FEW or len(barred) * barred.size <= _FEW_PAIRS
    return _pairwise(layers) if is_few else _one_by_one(layers)


def _pairwise(layers: Amounts) -> Mask:
    """Choices that no other one beats or, if it comes first, equals in all layers."""
    is_less: Mask = layers[0][:, None] <= layers[0][None]
    for layer in layers[1:]:
        is_less &= layer[:, None] <= layer[None]
    choices = np.arange(len(is_less))
    is_first = (choices[:, None] < choices)[:, :, None]
    beats = is_less & (is_first | ~is_less.swapaxes(0, 1))
    return np.logical_not(beats.any(0))


def _one_by_one(layers: Amounts) -> Mask:
    """First the choice with the least sum, then, of those that take less of something, the next.

    Most combinations soon have none left.
    """
    found = np.zeros(layers.shape[1:], dtype=bool)
    total = (layers / _largest(layers)).sum(0)
    at = np.arange(layers.shape[2])
    while len(at):
        best = total.argmin(0)
        found[best, at] = True
        chosen = layers[:, best, np.arange(len(at))]
        total[(chosen[:, None] <= layers).all(0)] = math.inf
        left = np.flatnonzero(total.min(0) < math.inf)
        if len(left) < len(at):
            at, total, layers = at[left], total[:, left], layers[:, :, left]
    return found


def _largest(layers: Amounts) -> Amounts:
    """The largest of each amount, for sums of amounts that are alike."""
    finite = np.where(np.isfinite(layers), np.abs(layers), 0.0)
    largest = finite.max((1, 2), keepdims=True)
    return np.where(largest > 0, largest, 1.0)


def _rounded(values: Amounts) -> Amounts:
    half = 1 << (_ROUNDED_BITS - 1)
    return ((values.view(np.int64) + half) & ~(2 * half - 1)).view(np.float64)
