"""Scores against their textbook forms and against numpy."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.validation.predict import Models, Prediction, predictions_of
from autoplan.validation.published.reported import reported_bytes, scope_of
from autoplan.validation.published.rows import read_rows
from autoplan.validation.scores import errors_of, percentile, regret, spearman, summarise
from autoplan.validation.setups.setup import Setup
from autoplan.validation.step.step_time import StepTime
from cost_models.memory import MemoryBreakdown
from hardware_profiles.spec import ClusterSpec
from tests.unit.measured_rows import row_of, write_csv

VALUES = st.lists(st.floats(0.001, 1000), min_size=3, max_size=30)
QUICK = settings(deadline=None, max_examples=60)


def _memory(total: int) -> MemoryBreakdown:
    return MemoryBreakdown(
        parameters=total,
        master_weights=0,
        gradients=0,
        optimizer_state=0,
        gathered_parameters=0,
        activations=0,
        transient=0,
        communication_buffers=0,
        workspace=0,
    )


def _step(setup: Setup, cluster: ClusterSpec) -> StepTime:
    """Ten times the microbatch in seconds: a stand-in that ranks by the microbatch."""
    step_s = 10.0 * setup.microbatch
    return StepTime(
        step_s=step_s, compute_s=step_s, exposed_comm_s=0.0, bubble_s=0.0, optimizer_s=0.0
    )


MODELS = Models(step_of=_step, memory_of=lambda setup: _memory(30 * 10**9 * setup.microbatch))


def _predicted(folder: Path, *changes: dict[str, str]) -> tuple[Prediction, ...]:
    named = [{"id": f"run-{index}", **change} for index, change in enumerate(changes)]
    return predictions_of(read_rows(write_csv(folder, *named)).rows, models=MODELS)


@QUICK
@given(values=VALUES, fraction=st.floats(0, 1))
def test_percentiles_are_numpys(values: list[float], fraction: float) -> None:
    expected = np.percentile(values, 100 * fraction)
    assert percentile(values, fraction) == pytest.approx(expected, rel=1e-9)


@QUICK
@given(permutation=st.permutations(range(12)))
def test_rank_correlation_without_ties_is_the_textbook_formula(permutation: list[int]) -> None:
    n = len(permutation)
    squares = sum((index - rank) ** 2 for index, rank in enumerate(permutation))
    expected = 1 - 6 * squares / (n * (n * n - 1))
    assert spearman(range(n), permutation) == pytest.approx(expected)


@QUICK
@given(values=VALUES)
def test_rank_correlation_does_not_see_monotonic_changes(values: list[float]) -> None:
    correlation = spearman(values, [2 * value for value in values])
    assert correlation is None or correlation == pytest.approx(1.0)


def test_rank_correlation_with_ties() -> None:
    """Ranks 1.5, 1.5, 3 against 1, 2, 3: the correlation of the ranks is sqrt(3) / 2."""
    assert spearman([5, 5, 9], [1, 2, 3]) == pytest.approx(math.sqrt(3) / 2)
    assert spearman([1, 1, 1], [1, 2, 3]) is None
    assert spearman([1, 2], [1, 2]) is None


def test_regret() -> None:
    assert regret([1.0, 2.0, 3.0], [10.0, 20.0, 30.0]) == 0
    assert regret([2.0, 1.0, 3.0], [10.0, 12.0, 30.0]) == pytest.approx(0.2)


def test_errors() -> None:
    errors = errors_of([-0.1, 0.3, None, 0.2])
    assert errors is not None
    assert (errors.rows, errors.median, errors.max) == (3, 0.2, 0.3)
    assert errors.mean == pytest.approx(0.2)
    assert errors_of([None]) is None


def test_errors_are_signed_fractions_of_what_is_reported(tmp_path: Path) -> None:
    (prediction,) = _predicted(tmp_path, {"step_time_s": "8", "peak_mem_gb": "40"})
    assert prediction.error == pytest.approx(0.25)
    assert prediction.mem_error == pytest.approx(-0.25)


def test_only_qualities_a_and_b_are_scored(tmp_path: Path) -> None:
    summary = summarise(
        _predicted(tmp_path, *({"quality": quality, "step_time_s": "5"} for quality in "ABCDR"))
    )
    assert (summary.rows, summary.priced) == (5, 5)
    assert summary.step is not None
    assert (summary.step.rows, summary.step.median) == (2, 1.0)


def test_rows_that_cannot_be_priced_keep_their_reason(tmp_path: Path) -> None:
    first, second = _predicted(tmp_path, {"gpu": "TPU v5p"}, {})
    assert first.skipped == "gpu TPU v5p: no hardware profile has it"
    assert (first.predicted_s, first.predicted_bytes, first.error) == (None, None, None)
    assert second.skipped is None
    summary = summarise([first, second])
    assert (summary.priced, summary.complete, summary.complete_priced) == (1, 2, 1)


def test_a_model_that_refuses_a_setup_is_a_reason(tmp_path: Path) -> None:
    def refuses(setup: Setup, cluster: ClusterSpec) -> StepTime:
        raise ValueError("no such\nschedule")

    rows = read_rows(write_csv(tmp_path, {})).rows
    models = Models(step_of=refuses, memory_of=MODELS.memory_of)
    assert predictions_of(rows, models=models)[0].skipped == "no such schedule"


def test_sequences_of_varying_length_compare_memory_only(tmp_path: Path) -> None:
    (prediction,) = _predicted(
        tmp_path, {"seq_len": "longest 1304 tokens (variable)", "peak_mem_gb": "30"}
    )
    assert (prediction.predicted_s, prediction.error) == (None, None)
    assert prediction.mem_error == pytest.approx(0)
    assert prediction.skipped == "step time: sequence lengths vary"


def test_who_fits(tmp_path: Path) -> None:
    """30 GB a sequence on 80 GB: two sequences fit, four do not."""
    batches = {"grad_accum": "", "global_batch_seqs": "1536"}
    summary = summarise(
        _predicted(
            tmp_path,
            {**batches, "micro_batch": "1"},
            {**batches, "micro_batch": "2", "oom": "1", "step_time_s": ""},
            {**batches, "micro_batch": "4", "oom": "1", "step_time_s": ""},
            {**batches, "micro_batch": "6"},
            {**batches, "micro_batch": "3", "step_time_s": ""},
        )
    )
    calls = summary.out_of_memory
    assert calls is not None
    assert (calls.fits_rightly, calls.fits_wrongly) == (1, 1)
    assert (calls.out_of_memory_rightly, calls.out_of_memory_wrongly) == (1, 1)


def test_ranking_within_fixed_work(tmp_path: Path) -> None:
    """The stand-in calls the smallest microbatch the best; it took 12 s, the best took 10 s."""
    batches = {"grad_accum": "", "global_batch_seqs": "1536"}
    other = {**batches, "set": "two", "global_batch_seqs": "768"}
    summary = summarise(
        _predicted(
            tmp_path,
            {**batches, "micro_batch": "1", "step_time_s": "12"},
            {**batches, "micro_batch": "2", "step_time_s": "10"},
            {**batches, "micro_batch": "4", "step_time_s": "20"},
            {**other, "micro_batch": "1", "step_time_s": "5"},
            {**other, "micro_batch": "2", "step_time_s": "4"},
        )
    )
    ranking = summary.ranking
    assert ranking is not None
    assert (ranking.groups, ranking.rows) == (1, 3)
    assert ranking.regret_median == pytest.approx(0.2)
    assert ranking.rank_correlation == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("figure", "kind", "nbytes", "scope"),
    [
        ("88.48", "torch peak reserved 82.4 GiB (max over ranks)", 82.4 * 2**30, "reserved"),
        ("4.82", "Max GPU RAM GB", 4.82e9, "allocated"),
        ("25.5", "peak active GiB", 25.5 * 2**30, "allocated"),
        ("31.4", "nvidia-smi GB", 31.4e9, "device"),
        ("2.2", "(model states + peak activation) MiB/1024", 2.2 * 2**30, "allocated"),
        (
            "104.812",
            "GiB: params+grads+optimizer 45.5625 + activations 59.25 (ANALYTIC)",
            104.812 * 2**30,
            "states and activations",
        ),
        ("52.5", "model states only, analytic, 1e9 bytes", 52.5e9, "states"),
        ("59.25", "GiB, activations none GiB (profile value)", 59.25 * 2**30, "activations"),
    ],
)
def test_what_sources_count_as_memory(
    tmp_path: Path, figure: str, kind: str, nbytes: float, scope: str
) -> None:
    row = row_of(tmp_path, peak_mem_gb=figure, mem_kind=kind)
    assert reported_bytes(row) == pytest.approx(nbytes)
    assert scope_of(row) == scope
