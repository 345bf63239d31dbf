"""What a search says of itself: how far it has come, and what it has proven."""

from __future__ import annotations

import math
from collections.abc import Callable

from autoplan.job import Job, Pins
from autoplan.plan import SearchRecord
from autoplan.progress import Progress
from autoplan.search.deadline import Deadline

Counted = Callable[[int, int, float | None], None]


def counted(progress: Progress | None, what: str) -> Counted | None:
    """The caller's progress in the terms of a search: how many of all, and the best step so far."""
    if progress is None:
        return None

    def tell(done: int, total: int, best_s: float | None) -> None:
        best = "no plan yet" if best_s is None else f"best {best_s:.4g} s a step"
        progress(done / total, f"{done} of {total} {what}, {best}")

    return tell


def tell_comparing(progress: Progress | None) -> None:
    """Says that the best plan is found and others are looked for beside it."""
    if progress is not None:
        progress(1.0, "comparing with other plans")


def record_of(
    job: Job,
    *,
    step_s: float,
    bound_s: float,
    candidates: int,
    space: str,
    cut_by: Deadline | None = None,
) -> SearchRecord:
    """The record of a search whose best plan takes ``step_s``; rounding is no gap.

    ``cut_by`` is the deadline that ended the search, if one did.
    """
    lower_bound_s = min(bound_s, step_s)
    if math.isclose(lower_bound_s, step_s, rel_tol=1e-9):
        lower_bound_s = step_s
    is_free = job.pins == Pins() and not job.placements
    narrowed = "" if is_free else "; of these, what the pins and placements given allow"
    cut = f"; the search was cut short after {cut_by.limit_s:g} s" if cut_by else ""
    return SearchRecord(
        gap=1 - lower_bound_s / step_s,
        lower_bound_s=lower_bound_s,
        candidates=candidates,
        space=space + narrowed + cut,
    )
