"""The slowest of many devices, against tables of order statistics and the limits of its growth."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.jitter import largest_normal, slowest_of


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, 0.0), (2, 1 / math.sqrt(math.pi)), (3, 1.5 / math.sqrt(math.pi)), (4, 1.02938),
     (5, 1.16296), (6, 1.26721), (10, 1.53875), (20, 1.86748), (50, 2.24907), (100, 2.50759)],
)  # fmt: skip
def test_expected_largest_normal_is_the_tables(count: int, expected: float) -> None:
    """Harter 1961, "Expected values of normal order statistics", table 1; 2 and 3 are exact."""
    assert largest_normal(count) == pytest.approx(expected, abs=5e-6)


def test_sampled_steps_agree() -> None:
    drawn = random.Random(0)
    slowest = [max(drawn.gauss(1.0, 0.05) for _ in range(64)) for _ in range(4000)]
    mean, error = sum(slowest) / 4000, 0.05 / math.sqrt(4000)
    assert slowest_of(64, 0.05) == pytest.approx(mean, abs=3 * error)


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 10**6))
def test_growth_is_within_its_bounds(count: int) -> None:
    """At most sqrt(2 ln n); at least the quantile of n / (n + 1), the
    mean of Phi of the largest, since Phi is concave where the largest lies."""
    largest = largest_normal(count)
    assert largest <= math.sqrt(2 * math.log(count))
    below = (1 + math.erf(largest / math.sqrt(2))) / 2
    assert below >= count / (count + 1) - 1e-12
    assert largest_normal(2 * count) > largest


def test_one_device_waits_for_none() -> None:
    assert slowest_of(1, 0.1) == pytest.approx(1.0, abs=1e-12)
    assert slowest_of(4096, None) == 1.0
    assert slowest_of(4096, 0.0) == 1.0


@pytest.mark.parametrize(("devices", "jitter"), [(0, 0.1), (-1, 0.1), (8, -0.1)])
def test_what_is_no_jitter_is_refused(devices: int, jitter: float) -> None:
    with pytest.raises(ValueError, match="use "):
        slowest_of(devices, jitter)
