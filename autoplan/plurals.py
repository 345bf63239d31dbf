"""Numbers of things in sentences."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """``1 node``, ``2 nodes``; by default many end in s."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"
