"""What synchronous steps lose to their slowest device.

Every device waits for all others once a step, so that a step lasts as long as that of the slowest.
Where the step times of devices are independent and normal, with mean t and standard deviation
sigma t, the expected longest one of n is

    t (1 + sigma E[max of n standard normals])

(David and Nagaraja, "Order Statistics", 2003, chapter 3; that the slowest worker sets the pace of
synchronous training: Chen et al. 2016, "Revisiting Distributed Synchronous SGD"). The expectation
is the integral of 1 - Phi^n over the positive x less that of Phi^n over the negative ones, and
grows like sqrt(2 ln n).
"""

from __future__ import annotations

import math

_REACH = 12.0
_POINTS = 1200


def slowest_of(devices: int, step_jitter: float | None) -> float:
    """The expected step time of the slowest device over that of one.

    Args:
        devices: how many wait for each other.
        step_jitter: standard deviation of one device's step time over its mean; None: 0.

    Raises:
        ValueError: no devices, or a negative deviation.
    """
    if step_jitter is None:
        return 1.0
    if step_jitter < 0:
        raise ValueError(f"step_jitter {step_jitter}: use a standard deviation of 0 or more")
    return 1.0 + step_jitter * largest_normal(devices)


def largest_normal(count: int) -> float:
    """The expected largest of independent standard normals.

    By the trapezium rule; the integrand is smooth and vanishes at both ends, so that the error is
    below 1e-9 up to a million.

    Raises:
        ValueError: none of them.
    """
    if count < 1:
        raise ValueError(f"the largest of {count} numbers: use one or more")
    width = _REACH / _POINTS
    total = 0.0
    for index in range(_POINTS + 1):
        x = index * width
        above = math.erfc(x / math.sqrt(2)) / 2
        term = -math.expm1(count * math.log1p(-above)) - above**count
        total += term / 2 if index in (0, _POINTS) else term
    return total * width
