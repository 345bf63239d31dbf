"""Predicted against measured: which pass counts, what is measured anew, and the scores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import predicted_vs_measured
from benchmarks.predicted import measure
from benchmarks.predicted.pairs import PAIRS
from benchmarks.predicted.rows import Row, append, combined, read

ROW = Row(
    pair=PAIRS[0].name, cluster="mine.toml", other_load=0.0, predicted_s=1.0, measured_s=1.0,
    low_s=0.9, high_s=1.1, predicted_bytes=(100, 200), measured_bytes=(100, 200),
)  # fmt: skip


def rows_of(*pairs: tuple[float, float]) -> list[Row]:
    return [replace(ROW, measured_s=seconds, other_load=load) for seconds, load in pairs]


def test_rows_read_back(tmp_path: Path):
    assert read(tmp_path / "none.jsonl") == []
    for row in (ROW, replace(ROW, pair="another")):
        append(tmp_path / "rows.jsonl", row)
    assert read(tmp_path / "rows.jsonl") == [ROW, replace(ROW, pair="another")]


def test_the_middle_of_undisturbed_passes_counts():
    (row,) = combined(rows_of((5.0, 0.5), (1.0, 0.01), (3.0, 0.0), (2.0, 0.02)), 0.05)
    assert row.measured_s == 2.0


def test_a_pass_is_judged_by_the_profile_that_was_measured_with_it():
    slow_hour = replace(ROW, predicted_s=3.0, measured_s=3.3)
    middle = replace(ROW, predicted_s=1.0, measured_s=1.2)
    (row,) = combined([middle, slow_hour, replace(ROW, predicted_s=0.5)], 0.05)
    assert row == middle


def test_without_an_undisturbed_pass_the_least_disturbed_counts():
    (row,) = combined(rows_of((5.0, 0.5), (1.0, 0.3), (3.0, 0.4)), 0.05)
    assert row.measured_s == 1.0


def test_errors_are_of_the_rank_that_is_farthest_off():
    row = replace(ROW, predicted_s=0.8, predicted_bytes=(104, 190))
    assert row.time_error == pytest.approx(-0.2)
    assert row.bytes_error == pytest.approx(-0.05)


def test_targets_are_met_or_missed(capsys):
    good = [replace(ROW, pair=str(n), predicted_s=n, measured_s=1.1 * n) for n in (1, 2, 3)]
    assert predicted_vs_measured.print_scores(good)
    said = capsys.readouterr().out
    assert "3 pairs: step time 9.1% off in the median, rank correlation 1.00; bytes 0.0%" in said
    under = [*good, replace(ROW, predicted_bytes=(96, 200))]
    assert not predicted_vs_measured.print_scores(under)
    slow = [replace(row, measured_s=2 * row.predicted_s) for row in good]
    assert not predicted_vs_measured.print_scores(slow)


def test_every_pass_has_a_profile_of_its_own(tmp_path, monkeypatch):
    rows: list[Row] = []

    def measured(pair, cluster, steps):
        rows.append(replace(ROW, pair=pair.name, cluster=cluster))
        return rows[-1]

    monkeypatch.setattr(measure, "measured", measured)
    predicted_vs_measured.fill(
        tmp_path / "rows.jsonl", "pass {}".format, PAIRS[:2], passes=2, steps=3, seconds_s=1e9
    )
    assert [row.cluster for row in rows] == ["pass 0", "pass 0", "pass 1", "pass 1"]


def test_a_file_is_gone_on_with_and_disturbed_passes_are_taken_again(tmp_path, monkeypatch):
    asked: list[str] = []

    def measured(pair, cluster, steps):
        asked.append(pair.name)
        return replace(ROW, pair=pair.name, cluster=cluster)

    monkeypatch.setattr(measure, "measured", measured)
    first, second = (pair.name for pair in PAIRS[:2])
    path = tmp_path / "rows.jsonl"
    append(path, replace(ROW, pair=first))
    append(path, replace(ROW, pair=second, other_load=0.5))
    given = ["--cluster", "mine.toml", "--resume", str(path), "--passes", "1", "--only", "GPT, 1"]
    assert predicted_vs_measured.main(given) == 1
    assert asked == [second]
    asked.clear()
    predicted_vs_measured.main([*given, "--seconds", "0", "--passes", "2"])
    assert asked == []
