"""Steady states of blocking pipelines that are left out, against slot after slot."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cost_models.pipeline import StageTimes
from cost_models.schedule_exchange import _run, simulate_exchanges
from cost_models.schedule_repeat import longest_repetition, shortened
from cost_models.schedule_slots import exchange_layout
from cost_models.schedules import PipelineShape, ScheduleError, ScheduleName
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


@given(
    st.sampled_from(["1f1b", "zero_bubble", "interleaved_1f1b"]),
    st.integers(1, 9),
    st.integers(1, 3),
    st.integers(1, 90),
    st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_all_microbatches_end_when_slot_after_slot_says(
    schedule: ScheduleName, ranks: int, per_rank: int, microbatches: int, alike: bool
) -> None:
    """With the steady state left out and, of the same stages, run through."""
    per_rank = 1 if schedule == "1f1b" else per_rank
    try:
        case = case_of(schedule, ranks, per_rank, microbatches, 0.0 if alike else 1e-3)
        shape = PipelineShape(schedule=schedule, ranks=ranks, stages=ranks * per_rank,
                              microbatches=microbatches)  # fmt: skip
    except ScheduleError:
        assume(False)
        raise
    whole = _run(exchange_layout(shape), case.stages).clocks(0, 0.0)
    found = simulate_exchanges(shape, case.stages)
    for name in ("rank_end_s", "last_backward_end_s", "exposed_send_s"):
        assert getattr(found, name) == pytest.approx(getattr(whole, name), rel=1e-11, abs=1e-9)


@pytest.mark.parametrize("microbatches", [400, 4000])
def test_a_steady_state_is_not_run_through(microbatches: int) -> None:
    case = case_of("1f1b", 16, 1, microbatches, 0.0)
    shape = PipelineShape(schedule="1f1b", ranks=16, stages=16, microbatches=microbatches)
    short = shortened(shape)
    assert short is not None
    assert short.microbatches < 50
    found_s = _run(exchange_layout(short), case.stages).steady_s()
    assert found_s == pytest.approx(1.3 + 1.2 + 0.9 + 0.05, rel=1e-11)  # the longer last stage


def test_the_longest_repetition() -> None:
    rows = np.array([[5], [1], [2], [1], [2], [1], [7], [8], [7], [8]], dtype=float)
    assert longest_repetition(rows, np.zeros_like(rows), 2) == (3, 6)
    assert longest_repetition(rows, np.arange(10.0)[:, None], 2) == (0, 0)
    assert longest_repetition(rows, rows, 10) == (0, 0)
