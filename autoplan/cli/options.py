"""Repeated ``key=value`` options, checked by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoplan.errors import PlanError


def key_values(option: str, texts: Sequence[str]) -> dict[str, str]:
    """``["dp=2", "tp=4"]`` as a dict.

    Raises:
        PlanError: for a text without ``=``, or a key given twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise PlanError(f"{option} {text}: expected {option} name=value")
        if name in found:
            raise PlanError(f"{option} {name} is given twice; give it once")
        found[name] = value
    return found


def shapes(texts: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
    """``["input_ids=8x1024"]`` as shapes; sizes are separated by ``x`` or ``,``.

    Raises:
        PlanError: for a size that is not a positive integer.
    """
    return {name: _shape(name, text) for name, text in key_values("--input", texts).items()}


def _shape(name: str, text: str) -> tuple[int, ...]:
    sizes = text.replace(",", "x").split("x")
    if not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise PlanError(f"--input {name}={text}: expected positive sizes such as {name}=8x1024")
    return tuple(int(size) for size in sizes)
