"""Steady states of blocking pipelines that are not run through, against slot after slot."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from cost_models import schedule_exchange
from cost_models.pipeline import StageTimes
from cost_models.schedule_repeat import longest_repetition, repeat
from tests.unit.pipeline_cases import Case
from tests.unit.test_pipeline_oracle import lockstep_s, megatron_interleaved_slots, single_slots

NEAR = [0.0, 1e-13, 1e-9, 1e-3, 0.5]


def case_of(schedule: str, ranks: int, per_rank: int, microbatches: int, spread: float) -> Case:
    """Equal stages, but for random parts up to ``spread`` and a longer last one."""
    draw = random.Random(ranks).uniform
    *others, last = (
        StageTimes(
            forward_s=1 + draw(0, spread),
            backward_input_s=1.2 + draw(0, spread),
            backward_weight_s=0.9,
            send_forward_s=0.05,
            send_backward_s=0.05,
        )
        for _ in range(ranks * per_rank)
    )
    last = replace(last, forward_s=last.forward_s + 0.3)
    return Case(schedule, ranks, microbatches, (*others, last), blocking=True)


@pytest.mark.parametrize("spread", NEAR)
@pytest.mark.parametrize(
    ("schedule", "ranks", "per_rank", "microbatches"),
    [("1f1b", 16, 1, 160), ("gpipe", 8, 1, 100), ("zero_bubble", 8, 1, 120),
     ("interleaved_1f1b", 4, 3, 60), ("interleaved_1f1b", 8, 2, 40)],
)  # fmt: skip
def test_many_microbatches_equal_the_recursion(
    schedule: str, ranks: int, per_rank: int, microbatches: int, spread: float
) -> None:
    case = case_of(schedule, ranks, per_rank, microbatches, spread)
    slots = megatron_interleaved_slots if per_rank > 1 else single_slots
    ends, last = lockstep_s(case, *slots(case))
    time = case.simulate()
    assert time.rank_end_s == pytest.approx(ends, rel=1e-11)
    assert time.last_backward_end_s == pytest.approx(last, rel=1e-11)


def test_a_steady_state_is_not_run_through(monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[int] = []
    advance = schedule_exchange._advance

    def counted(*lines) -> None:
        run.append(len(lines[0]))
        advance(*lines)

    monkeypatch.setattr(schedule_exchange, "_advance", counted)
    case_of("1f1b", 16, 1, 400, 0.0).simulate()
    assert sum(run) < 200 < 2 * 400


def test_the_longest_repetition() -> None:
    rows = np.array([[5], [1], [2], [1], [2], [1], [7], [8], [7], [8]], dtype=float)
    assert longest_repetition(rows, np.zeros_like(rows), 2) == (3, 6)
    assert longest_repetition(rows, np.arange(10.0)[:, None], 2) == (0, 0)
    assert longest_repetition(rows, rows, 10) == (0, 0)


def test_clocks_go_on_by_the_period() -> None:
    clocks = np.zeros((9, 2))
    clocks[:4] = [[0, 0], [1, 3], [2, 4], [5, 7]]
    repeat(clocks, 4, 9, 2, 4.0)
    assert clocks[4:].tolist() == [[6, 8], [9, 11], [10, 12], [13, 15], [14, 16]]
