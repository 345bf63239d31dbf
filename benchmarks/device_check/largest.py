"""The largest batch that fits, by trying."""

from __future__ import annotations

from collections.abc import Callable


def largest_that_fits(fits: Callable[[int], bool], near: int, tries: int) -> tuple[int, int]:
    """Bounds of the largest batch that fits: one that does (or 0), and the least known not to.

    Steps away from ``near`` grow by twice, then the bounds are halved.

    Args:
        fits: tries a batch; where one fits, so do all smaller ones.
        near: where to begin, 1 or more.
        tries: how many batches may be tried; the bounds are neighbours where they were enough.
    """
    low, high, step, number = 0, 0, max(1, near // 32), near
    for _ in range(tries):
        if fits(number):
            low = number
        else:
            high = number
        if high and high - low <= 1:
            break
        if low and high:
            number = (low + high) // 2
        elif high:
            number = max(1, high - step)
            step *= 2
        else:
            number = low + step
            step *= 2
    return low, high
