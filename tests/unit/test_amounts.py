"""Amounts of memory as users write them."""

from __future__ import annotations

import pytest

from autoplan import amounts
from autoplan.errors import PlanError

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("70GiB", 70 * GIB),
        ("70 gib", 70 * GIB),
        ("7.5GiB", 7.5 * GIB),
        ("70GB", 70e9),
        ("512MiB", GIB // 2),
        ("1024B", 1024),
        ("0.9", 72 * GIB),
        (0.9, 72 * GIB),
        ("90%", 72 * GIB),
        ("1", 80 * GIB),
        (1, 80 * GIB),
        (70 * GIB, 70 * GIB),
        (float(70 * GIB), 70 * GIB),
    ],
)
def test_limits(text: str | float, expected: float) -> None:
    assert amounts.memory_limit(text, 80 * GIB, "H100") == int(expected)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("70", "give a unit, 70GiB"),
        ("81GiB", "H100 has 80.0 GiB"),
        ("1.1e2", "expected an amount such as 70GiB"),
        ("110%", "H100 has 80.0 GiB"),
        (0, "an amount above zero"),
        ("-5GiB", "expected an amount"),
        ("70GiBs", "unknown unit 'GiBs'"),
        ("much", "expected an amount"),
        ("", "expected an amount"),
        ("²GiB", "expected an amount"),
        (True, "expected an amount"),
        (float("nan"), "expected an amount"),
        (float("inf"), "expected an amount"),
    ],
)
def test_limits_that_cannot_be(text: str | float, named: str) -> None:
    with pytest.raises(PlanError, match=named) as caught:
        amounts.memory_limit(text, 80 * GIB, "H100")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"), [("5%", 0.05), ("0.05", 0.05), (0.05, 0.05), (0, 0.0), (1e-20, 1e-20)]
)
def test_margins(text: str | float, expected: float) -> None:
    assert amounts.margin(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["5", "100%", "1", "-1%", "5GiB", "some", -0.1, True])
def test_margins_that_cannot_be(text: str | float) -> None:
    with pytest.raises(PlanError, match=r"memory margin .*5%"):
        amounts.margin(text)
