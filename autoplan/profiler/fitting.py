"""What fits have in common: values with their errors, refusals, and the loss that is minimised.

The loss is the mean absolute logarithm of predicted over measured, so that a few disturbed
measurements do not decide (as in ``benchmarks.fit_collectives``).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autoplan.profiler.probes import Measured, Refused
from cost_models.pattern_search import fit_constants

LARGEST_MEDIAN_ERROR = 0.5
_FIRST_STEP, _LAST_STEP, _DIGITS = 0.4, 0.002, 4

Predict = Callable[[Measured], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Errors:
    """How far a fit is from what was measured, |predicted / measured - 1|."""

    what: str
    number: int
    median: float
    largest: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """Values of a profile by dotted name, how they were found, what misses, and what has none."""

    values: Mapping[str, float]
    sources: Mapping[str, str]
    errors: tuple[Errors, ...] = ()
    refused: tuple[Refused, ...] = ()


NOTHING = Fit(values={}, sources={})


def joined(*fits: Fit) -> Fit:
    """All of them, in one."""
    return Fit(
        values={name: value for fit in fits for name, value in fit.values.items()},
        sources={name: source for fit in fits for name, source in fit.sources.items()},
        errors=tuple(errors for fit in fits for errors in fit.errors),
        refused=tuple(refused for fit in fits for refused in fit.refused),
    )


def errors_of(what: str, rows: Sequence[Measured], predicted: Predict) -> Errors:
    """Of at least one row."""
    found = [abs(predicted(row) / row.value - 1) for row in rows]
    return Errors(what=what, number=len(found), median=statistics.median(found), largest=max(found))


def loss_of(rows: Sequence[Measured], predicted: Predict) -> float:
    """Mean absolute logarithm of predicted over measured."""
    return sum(abs(math.log(predicted(row) / row.value)) for row in rows) / len(rows)


def constants(
    loss: Callable[[Mapping[str, float]], float],
    start: Mapping[str, float],
    highest: Mapping[str, float],
) -> dict[str, float]:
    """The constants with the least loss."""
    return fit_constants(
        loss, start, highest, first_step=_FIRST_STEP, last_step=_LAST_STEP, digits=_DIGITS
    )


def missing(what: str, rows: Sequence[Measured], needed: int) -> Refused | None:
    """Why a fit to so few rows is refused; None where there are enough."""
    if len(rows) >= needed:
        return None
    return Refused(name=what, reason=f"{len(rows)} measurements, {needed} are needed")


def unlike(errors: Errors) -> Refused | None:
    """Why a fit is refused whose model does not describe what was measured."""
    if errors.median <= LARGEST_MEDIAN_ERROR:
        return None
    return Refused(
        name=errors.what,
        reason=f"the cost model is {errors.median:.0%} off in the median of {errors.number}",
    )
