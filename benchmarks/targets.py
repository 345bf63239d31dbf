"""What predictions of memory are to meet, wherever they are compared with what was measured."""

from __future__ import annotations

from collections.abc import Sequence

BYTES_ERROR, BYTES_UNDER = 0.05, 0.03


def are_bytes_met(errors: Sequence[float]) -> bool:
    """Whether predictions are near, and nearer where they are too low: a plan then may not fit.

    Args:
        errors: predicted over measured less 1, of each.
    """
    return max(map(abs, errors)) <= BYTES_ERROR and -min(errors) <= BYTES_UNDER
