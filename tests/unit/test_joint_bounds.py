"""Searches of one configuration against the best of all its plans, on small random problems."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autoplan.search.pipeline.costs import rank_memory
from autoplan.search.pipeline.quick_bounds import QuickBounds
from autoplan.search.pipeline.quick_room import QuickRoom
from autoplan.search.pipeline.solve import ConfigSearch
from autoplan.search.pipeline.whole import value_of_whole
from tests.unit import joint_configs
from tests.unit.joint_families import CROSSING
from tests.unit.joint_problems import JointProblem, random_problem
from tests.unit.joint_truth import best_of_all

_SLACK = 1e-9
_SEEDS = st.integers(0, 2**32 - 1)


def check_quick_bounds(problem: JointProblem, best_s: float) -> None:
    quick = QuickBounds(family=problem.family)  # pyright: ignore[reportArgumentType]
    assert quick.busy(problem.config) <= best_s * (1 + _SLACK)
    assert quick.of(problem.config, problem.rates) <= best_s * (1 + _SLACK)


def check_quick_room(problem: JointProblem) -> None:
    room = QuickRoom(family=problem.family)  # pyright: ignore[reportArgumentType]
    assert room.fits(problem.rates, rank_memory(problem.pricing, problem.config))


def check_rounds(search: ConfigSearch, best_s: float) -> None:
    """The bound never falls, and is never above the best of all plans."""
    before_s = 0.0
    while not search.is_done:
        search.advance()
        # The bound as it was proven: not capped by a plan that happens to be the best.
        assert search._bound_s <= best_s * (1 + _SLACK)
        assert before_s <= search._bound_s
        before_s = search._bound_s


def check_plan(problem: JointProblem, search: ConfigSearch, best_s: float) -> None:
    """The plan is one of those there are, is what it is said to be, and fits."""
    found = search.best
    if found is None:
        return
    assert found.step_s >= best_s * (1 - _SLACK)
    assert search.bound_s <= found.step_s
    assert found.value.fits(problem.limit_bytes)
    columns = problem.family.ways[found.boundary[CROSSING]].columns  # pyright: ignore
    placed = 0
    for stage in found.stages:
        assert stage.first == placed
        for column in stage.columns:
            assert column in columns[problem.family.keys[placed]]
            placed += 1
    assert placed == len(problem.family.keys)
    again = value_of_whole(problem.costs_at(found.boundary), found.stages)
    assert again.step_s == found.step_s
    assert again.memory == found.value.memory


def check(problem: JointProblem) -> None:
    truth = best_of_all(problem)
    check_quick_bounds(problem, truth.step_s)
    steps_a_byte = truth.step_s / problem.limit_bytes if truth.value else 0.0
    search = problem.search([steps_a_byte, 0.1 * steps_a_byte])
    check_rounds(search, truth.step_s)
    check_plan(problem, search, truth.step_s)
    if truth.value is None:
        assert search.best is None
    else:
        check_quick_room(problem)
        assert search.bound_s < math.inf


@settings(deadline=None, max_examples=260)
@given(_SEEDS)
def test_without_a_pipeline(seed):
    check(random_problem(seed, joint_configs.flat, most_items=5))


@settings(deadline=None, max_examples=200)
@given(_SEEDS)
@example(2077)  # fits with fewer elements apart than where the search begins
def test_one_stage_a_rank(seed):
    check(random_problem(seed, joint_configs.staged, most_items=5))


@settings(deadline=None, max_examples=50)
@given(_SEEDS)
@example(11283)  # what blocks share is read by the other rank's stages
def test_two_stages_a_rank(seed):
    check(random_problem(seed, joint_configs.interleaved, most_items=5))


def test_blocks_that_run_alike_have_a_column_that_no_price_finds():
    problem = random_problem(14, joint_configs.interleaved, most_items=5)
    found = problem.search().finish()
    assert found is not None
    assert found.step_s == pytest.approx(best_of_all(problem).step_s, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "draw", [joint_configs.flat, joint_configs.staged, joint_configs.interleaved]
)
def test_many_more(draw):
    for seed in range(10_000, 11_500):
        check(random_problem(seed, draw))
