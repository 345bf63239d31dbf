"""What an operator of a part of the root holds at work, as an amount that has a price."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoplan.search.regions.terms import Terms, along


def add_working(working: Sequence[Sequence[float]], terms: Terms) -> None:
    """Adds the larger of two operators: that which can hold most, and that which does at least.

    Args:
        working: for each decision, bytes of the operator at work for each choice.
    """
    numbers = range(len(working))
    most = max(numbers, key=lambda number: max(working[number]))
    least = max(numbers, key=lambda number: min(working[number]))
    scope = tuple(sorted({most, least}))
    held = [along(number, scope, working[number]) for number in scope]
    terms.add(scope, working_bytes=np.maximum(held[0], held[-1]))
