"""By how much problems of the same decisions differ at least."""

from __future__ import annotations

import math

from autoplan.search.problem import Problem


def least_increase(before: Problem, after: Problem) -> float:
    """By how much the optimum rises at least when the costs of ``before`` become ``after``'s."""
    total = 0.0
    for old, new in zip(before.nodes, after.nodes, strict=True):
        total += min(b.time_s - a.time_s for a, b in zip(old.choices, new.choices, strict=True))
    for old, new in zip(before.tensors, after.tensors, strict=True):
        least = min(
            (
                b - a
                for row_a, row_b in zip(old.conversion_s, new.conversion_s, strict=True)
                for a, b in zip(row_a, row_b, strict=True)
                if b < math.inf
            ),
            default=0.0,
        )
        total += least * (1 if least > 0 else len(new.readers))
    return total
