"""Times of one thing: warm it up, repeat it, take the median; refuse what is no measurement.

Other work on the machine delays some samples and not others. ``undisturbed`` takes the median of
those that it left alone: of all samples where nothing else runs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from autoplan.profiler.bench import Clock, Run

WARM_UP = 2
FEWEST, MOST = 5, 200
SAMPLE_S = 0.5e-3
"""Shorter calls are repeated within a sample, so that reading the clock does not count."""
LARGEST_ERROR = 0.3
_MOST_CALLS = 200


class BadMeasurementError(Exception):
    """A number that says nothing of what was to be measured; the message says why."""


def samples_alone(run: Run, clock: Clock, slice_s: float) -> list[float]:
    """Seconds of one run by its own clock, sample by sample, for ``slice_s`` of the wall's."""
    for _ in range(WARM_UP):
        run()
    once_s = _timed(run, clock.own_s, 1)
    calls = min(_MOST_CALLS, max(1, math.ceil(SAMPLE_S / max(once_s, 1e-9))))
    end_s = clock.wall_s() + slice_s
    found: list[float] = []
    while len(found) < FEWEST or (len(found) < MOST and clock.wall_s() < end_s):
        found.append(_timed(run, clock.own_s, calls) / calls)
    return found


def samples_together(
    run: Run | None,
    clock: Clock,
    slice_s: float,
    largest: Callable[[Sequence[float]], list[float]],
) -> list[float]:
    """Seconds of one run that ranks make together, by the wall: each sample of the slowest rank.

    Args:
        run: None on ranks that take no part in it.
        largest: the largest of all ranks' values.
    """
    call: Run = run or (lambda: None)
    for _ in range(WARM_UP):
        call()
    (once_s,) = largest([_timed(call, clock.wall_s, 1)])
    count = int(min(MOST, max(FEWEST, slice_s / max(once_s, 1e-9))))
    return largest([_timed(call, clock.wall_s, 1) for _ in range(count)])


def undisturbed(found: Sequence[float], idle: float = 1.0) -> float:
    """The median of the fastest samples, as many as nothing else delayed.

    Args:
        idle: the fraction of samples that nothing delayed.

    Raises:
        BadMeasurementError: it is no positive number, or known to no better than
            ``LARGEST_ERROR`` (Gaussian error of a median from the quartiles of the samples).
    """
    kept = sorted(found)[: max(FEWEST, math.ceil(idle * len(found)))]
    middle = statistics.median(kept)
    if not (math.isfinite(middle) and middle > 0):
        raise BadMeasurementError(f"the clock says {middle} s")
    low, _, high = statistics.quantiles(kept, n=4)
    if 0.93 * (high - low) / math.sqrt(len(kept)) > LARGEST_ERROR * middle:
        raise BadMeasurementError(
            f"times scatter from {low:.3g} to {high:.3g} s around {middle:.3g} s"
        )
    return middle


def _timed(call: Run, read_s: Callable[[], float], calls: int) -> float:
    started_s = read_s()
    for _ in range(calls):
        call()
    return read_s() - started_s
