"""Amounts as users write them: ``70GiB``, ``0.9`` or ``90%`` of a device, ``5%``, ``1T`` tokens."""

from __future__ import annotations

import math
import re

from autoplan.errors import PlanError

_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}  # fmt: skip
_COUNTS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(%|[a-zA-Z]*)")


def memory_limit(value: str | float, device_bytes: int, device: str) -> int:
    """Bytes of a device that may be used.

    Args:
        value: bytes with a unit (``70GiB``), a fraction or percentage of the device, or, as a
            number greater than 1, bytes.

    Raises:
        PlanError: not an amount, nothing, or more than the device has.
    """
    number, unit = _read("memory limit", value, "such as 70GiB, or a fraction of the device as 0.9")
    if unit.upper() in _BYTES:
        limit = number * _BYTES[unit.upper()]
    elif unit == "%" or number <= 1:
        limit = device_bytes * (number / 100 if unit == "%" else number)
    elif isinstance(value, str):
        raise PlanError(f"memory limit {value}: give a unit, {value}GiB, or a fraction up to 1")
    else:
        limit = number
    if not 1 <= limit <= device_bytes:
        raise PlanError(
            f"memory limit {value}: {device} has {device_bytes / 2**30:.1f} GiB; give an amount "
            "above zero and up to that"
        )
    return int(limit)


def margin(value: str | float) -> float:
    """The fraction of memory to leave free: ``5%`` or ``0.05``.

    Raises:
        PlanError: not a fraction below one.
    """
    number, unit = _read("memory margin", value, "such as 5% or 0.05")
    fraction = number / 100 if unit == "%" else number
    if unit not in ("", "%") or not 0 <= fraction < 1:
        raise PlanError(f"memory margin {value}: give a fraction from 0 to below 1, such as 5%")
    return fraction


def count(what: str, value: str | float) -> float:
    """A large number: ``1T``, ``300B``, ``1.5e12``.

    Raises:
        PlanError: not a number above zero.
    """
    text = str(value).strip().upper()
    unit = text[-1:] if text[-1:] in _COUNTS else ""
    try:
        number = float(text.removesuffix(unit) if unit else text) * _COUNTS[unit]
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise PlanError(f"{what} {value}: give a number above 0 such as 300B, 1T or 1.5e12")
    return number


def _read(what: str, value: str | float, expected: str) -> tuple[float, str]:
    """Number and unit; units other than bytes and ``%`` are refused."""
    text = f"{value:.17g}" if isinstance(value, float) and math.isfinite(value) else str(value)
    match = _AMOUNT.fullmatch(text.strip())
    if match is None and isinstance(value, float) and 0 <= value < math.inf:
        return value, ""
    if match is None or isinstance(value, bool):
        raise PlanError(f"{what} {value}: expected an amount {expected}")
    number, unit = float(match[1]), match[2]
    if unit not in ("", "%") and unit.upper() not in _BYTES:
        raise PlanError(f"{what} {value}: unknown unit {unit!r}; give an amount {expected}")
    return number, unit
