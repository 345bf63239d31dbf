"""What can run is said in one table, and every refusal names the cure."""

from __future__ import annotations

from typing import get_args

import pytest

from autoplan.capabilities import RUNNABLE_SCHEDULES, ZERO_STAGES, runs
from cost_models.schedules import ScheduleName


def test_every_schedule_that_is_priced_is_in_the_table():
    assert set(RUNNABLE_SCHEDULES) == {"none", *get_args(ScheduleName)}


@pytest.mark.parametrize("schedule", RUNNABLE_SCHEDULES)
def test_every_zero_stage_runs_without_recompute(schedule):
    for stage in ZERO_STAGES:
        assert runs(schedule, zero=stage.stage, recomputes=False) is None


@pytest.mark.parametrize(
    ("schedule", "choices", "reason"),
    [
        ("dualpipe", {"zero": 0, "recomputes": False}, "dualpipe cannot be run: use one of none"),
        ("1f1b", {"zero": 4, "recomputes": False}, "zero = 4: use one of 0, 1, 2, 3"),
        ("zbv", {"zero": 0, "recomputes": True}, "recompute nothing, or use 1f1b"),
    ],
)
def test_refusals(schedule, choices, reason):
    assert reason in (runs(schedule, **choices) or "")
