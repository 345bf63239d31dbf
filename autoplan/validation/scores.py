"""How good predictions are: errors, rank correlations, out-of-memory calls, and regret.

Only rows of quality A and B count. Percentiles interpolate between the two nearest values; rank
correlations are Spearman's, with equal values sharing their mean rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autoplan.validation.predict import Prediction

SMALLEST_GROUP = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Errors:
    """Of ``|predicted / reported - 1|``."""

    rows: int
    median: float
    mean: float
    p90: float
    max: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Confusion:
    """Runs that are known to fit or not, by what was predicted."""

    fits_rightly: int
    fits_wrongly: int
    out_of_memory_rightly: int
    out_of_memory_wrongly: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranking:
    """Of groups of runs that do the same work on the same devices.

    Attributes:
        rank_correlation: median over groups.
        regret_median, regret_p90: measured time of the configuration that was predicted to be the
            best, over that of the measured best, minus 1.
    """

    groups: int
    rows: int
    rank_correlation: float | None
    regret_median: float
    regret_p90: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Of some predictions.

    Attributes:
        priced: rows with a prediction of time or memory.
        complete: rows of quality A and B whose source states the whole configuration;
            ``complete_priced`` of them are priced.
        step, memory: errors over the scored rows, None where there are none.
        rank_correlation: of step times over all scored rows.
    """

    rows: int
    priced: int
    complete: int
    complete_priced: int
    step: Errors | None
    rank_correlation: float | None
    memory: Errors | None
    out_of_memory: Confusion | None
    ranking: Ranking | None


def summarise(predictions: Sequence[Prediction]) -> Summary:
    """Scores of the rows together."""
    scored = [each for each in predictions if each.row.scored]
    timed = [each for each in scored if each.error is not None]
    complete = [each for each in scored if each.row.complete]
    return Summary(
        rows=len(predictions),
        priced=sum(each.priced for each in predictions),
        complete=len(complete),
        complete_priced=sum(each.priced for each in complete),
        step=errors_of(each.error for each in scored),
        rank_correlation=spearman(*_times(timed)),
        memory=errors_of(each.mem_error for each in scored),
        out_of_memory=_confusion(scored),
        ranking=_ranking(timed),
    )


def by_set(predictions: Sequence[Prediction]) -> dict[str, list[Prediction]]:
    """Predictions of each set, in the order of the file."""
    sets: dict[str, list[Prediction]] = {}
    for each in predictions:
        sets.setdefault(each.row.set, []).append(each)
    return sets


def errors_of(errors: Iterable[float | None]) -> Errors | None:
    """Statistics of the absolute errors that there are."""
    sizes = sorted(abs(error) for error in errors if error is not None)
    if not sizes:
        return None
    return Errors(
        rows=len(sizes),
        median=percentile(sizes, 0.5),
        mean=math.fsum(sizes) / len(sizes),
        p90=percentile(sizes, 0.9),
        max=sizes[-1],
    )


def percentile(values: Sequence[float], fraction: float) -> float:
    """The value below which ``fraction`` of the values lie, interpolated."""
    ordered = sorted(values)
    place = fraction * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Rank correlation; None for fewer than three pairs, or where one side is constant."""
    if len(first) < SMALLEST_GROUP:
        return None
    ranks = _ranks(first), _ranks(second)
    middle = (len(first) + 1) / 2
    left, right = ([rank - middle for rank in each] for each in ranks)
    spread = math.fsum(x * x for x in left) * math.fsum(y * y for y in right)
    if spread == 0:
        return None
    return math.fsum(x * y for x, y in zip(left, right, strict=True)) / math.sqrt(spread)


def regret(predicted: Sequence[float], reported: Sequence[float]) -> float:
    """What following the prediction costs: 0 where the fastest run was predicted to be it."""
    chosen = min(range(len(predicted)), key=predicted.__getitem__)
    return reported[chosen] / min(reported) - 1


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values share their mean rank."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for index in order[start:end]:
            ranks[index] = (start + 1 + end) / 2
        start = end
    return ranks


def _times(timed: Sequence[Prediction]) -> tuple[list[float], list[float]]:
    predicted = [each.predicted_s or 0.0 for each in timed]
    return predicted, [each.row.step_time_s or 0.0 for each in timed]


def _confusion(scored: Sequence[Prediction]) -> Confusion | None:
    calls = [
        (each.out_of_memory, each.reported_out_of_memory)
        for each in scored
        if each.out_of_memory is not None and each.reported_out_of_memory is not None
    ]
    if not calls:
        return None
    return Confusion(
        fits_rightly=calls.count((False, False)),
        fits_wrongly=calls.count((False, True)),
        out_of_memory_rightly=calls.count((True, True)),
        out_of_memory_wrongly=calls.count((True, False)),
    )


def _ranking(timed: Sequence[Prediction]) -> Ranking | None:
    groups = [_times(group) for group in fixed_work(timed)]
    if not groups:
        return None
    correlations = [value for group in groups if (value := spearman(*group)) is not None]
    regrets = [regret(*group) for group in groups]
    return Ranking(
        groups=len(groups),
        rows=sum(len(predicted) for predicted, _ in groups),
        rank_correlation=percentile(correlations, 0.5) if correlations else None,
        regret_median=percentile(regrets, 0.5),
        regret_p90=percentile(regrets, 0.9),
    )


def fixed_work(timed: Sequence[Prediction]) -> list[list[Prediction]]:
    """Groups of three or more runs: same source, model, devices, global batch and sequence."""
    groups: dict[tuple[object, ...], list[Prediction]] = {}
    for each in timed:
        setup, row = each.setup, each.row
        if setup is not None and not setup.layer_only:
            model = (row.model, row.task, setup.model.layers, setup.model.hidden)
            work = (row.set, model, row.gpu, setup.gpus, setup.global_batch, setup.seq_len)
            groups.setdefault(work, []).append(each)
    return [group for group in groups.values() if len(group) >= SMALLEST_GROUP]
