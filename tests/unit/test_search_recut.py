"""Cuts that bounds alone do not show to be the best are found by what plans were seen to take."""

from __future__ import annotations

from random import Random

import pytest

from autoplan.search.pipeline.configs import Config
from tests.unit.joint_problems import random_problem
from tests.unit.joint_truth import best_of_all


def two_or_three_ranks(draw: Random) -> Config:
    pp = draw.choice((2, 3))
    return Config(
        pp=pp, dp=2, tp=1, zero=1, replicas=1, microbatch=1,
        num_microbatches=pp + draw.choice((0, 2)), schedule=draw.choice(("1f1b", "zero_bubble")),
        stages_per_rank=1, outermost="pp",
    )  # fmt: skip


@pytest.mark.parametrize("seed", [41, 43, 102, 116])
def test_plans_are_the_best_of_all_cuts(seed):
    problem = random_problem(seed, two_or_three_ranks, most_items=5)
    found = problem.search().finish()
    assert found is not None
    assert found.step_s == pytest.approx(best_of_all(problem).step_s, rel=1e-9)
