"""When a search ends with what it has: anytime planning."""

from __future__ import annotations

import math
import time

from autoplan.errors import PlanError


class Deadline:
    """A moment by which a search is to end; without a limit it never comes.

    Args:
        limit_s: seconds from now on.

    Raises:
        PlanError: the limit is no positive number.
    """

    def __init__(self, limit_s: float | None = None) -> None:
        if limit_s is not None and not limit_s > 0:
            raise PlanError(f"a time limit of {limit_s:g} s is not positive; give seconds above 0")
        self.limit_s = math.inf if limit_s is None else limit_s
        self._end_s = time.monotonic() + self.limit_s

    @property
    def is_over(self) -> bool:
        """Whether the moment has come."""
        return time.monotonic() >= self._end_s

    def no_plan(self) -> PlanError:
        """The error for a search that had to end before it had a plan."""
        return PlanError(
            f"no plan was found within the time limit of {self.limit_s:g} s, which does not mean "
            "that none fits; allow more time, or pin more (tp, pp, dp), which leaves less to search"
        )
