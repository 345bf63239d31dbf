"""Predictions of published training runs: what their errors must stay below."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from autoplan.validation.predict import Prediction, predictions_of
from autoplan.validation.published.rows import read_rows
from autoplan.validation.scores import by_set, summarise

RUNS = Path(__file__).parents[2] / "benchmarks" / "data" / "training.csv"
LARGE_SETS = 5


@cache
def predictions() -> tuple[Prediction, ...]:
    return predictions_of(read_rows(RUNS).rows)


def test_every_complete_row_is_priced() -> None:
    summary = summarise(predictions())
    assert summary.complete_priced == summary.complete > 200


def test_step_times_of_all_rows() -> None:
    errors = summarise(predictions()).step
    assert errors is not None
    assert errors.median <= 0.06
    assert errors.p90 <= 0.18


def test_step_times_of_each_large_set() -> None:
    for name, rows in by_set(predictions()).items():
        errors = summarise(rows).step
        if errors is not None and errors.rows >= LARGE_SETS:
            assert errors.median <= 0.10, name


def test_korthikanti_2022_table_5() -> None:
    errors = summarise(by_set(predictions())["korthikanti-table5"]).step
    assert errors is not None
    assert errors.mean <= 0.03
    assert errors.max <= 0.07


@pytest.mark.parametrize(
    ("name", "mean", "under"),
    [("korthikanti-fig1-memory", 0.02, 0.02), ("torchtitan-h100-202412", 0.06, 0.05)],
)
def test_memory(name: str, mean: float, under: float) -> None:
    rows = by_set(predictions())[name]
    errors = summarise(rows).memory
    assert errors is not None
    assert errors.mean <= mean
    assert min(row.mem_error for row in rows if row.mem_error is not None) >= -under


def test_runs_that_fit_and_runs_that_do_not() -> None:
    calls = summarise(predictions()).out_of_memory
    assert calls is not None
    assert calls.fits_wrongly == calls.out_of_memory_wrongly == 0
    assert calls.out_of_memory_rightly >= 10
    assert calls.fits_rightly >= 200


def test_order_of_configurations_of_the_same_work() -> None:
    ranking = summarise(predictions()).ranking
    assert ranking is not None
    assert ranking.rank_correlation is not None
    assert ranking.rank_correlation >= 0.9
    assert ranking.regret_median <= 0.02
    assert ranking.regret_p90 <= 0.10
