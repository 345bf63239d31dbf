"""How work tells how far it has come: the fraction done, and what is being done."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[float, str], None]


def silent(fraction: float, what: str) -> None:
    """Progress that nobody is told of."""


def rest_of(tell: Progress, start: float) -> Progress:
    """Progress of the work that follows the fraction ``start`` of all."""
    return lambda fraction, what: tell(start + (1 - start) * fraction, what)
