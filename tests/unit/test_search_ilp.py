"""The mixed-integer program against exhaustive search on random problems."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from autoplan.search.ilp import solve
from autoplan.search.problem import memory_of, time_of
from tests.unit.search_problems import exhaustive, random_problem, value_of

CASES = 400


@pytest.mark.parametrize("batch", range(4))
def test_equals_exhaustive_search(batch: int) -> None:
    for seed in range(batch * CASES // 4, (batch + 1) * CASES // 4):
        problem = random_problem(seed)
        best = exhaustive(problem)
        solution = solve(problem, relative_gap=0.0)
        if best is None:
            assert solution is None, seed
            continue
        assert solution is not None, seed
        time_s, memory = value_of(problem, solution.choices)
        assert time_s == pytest.approx(best, abs=1e-10), seed
        assert solution.time_s == pytest.approx(time_s, abs=1e-12), seed
        assert solution.memory_pages == memory, seed
        assert solution.bound_s == pytest.approx(best, rel=1e-6, abs=1e-10), seed


def test_random_problems_cover_every_situation() -> None:
    problems = [random_problem(seed) for seed in range(CASES // 2)]
    answers = [exhaustive(problem) for problem in problems]
    unlimited = [exhaustive(replace(problem, limit_pages=None)) for problem in problems]
    assert answers.count(None) >= 5
    pairs = zip(answers, unlimited, strict=True)
    assert sum(a is not None and u is not None and a > u for a, u in pairs) >= 25
    assert sum(any(len(t.readers) > 1 for t in p.tensors) for p in problems) >= 50


def test_value_functions_agree_with_the_definition() -> None:
    for seed in range(100):
        problem = random_problem(seed)
        for choices in itertools.product(*(range(len(n.choices)) for n in problem.nodes)):
            time_s, memory = value_of(problem, choices)
            assert time_of(problem, choices) == pytest.approx(time_s)
            assert memory_of(problem, choices) == memory


def test_the_same_problem_gives_the_same_assignment() -> None:
    problem = random_problem(7)
    assert len({solve(problem) for _ in range(3)}) == 1
