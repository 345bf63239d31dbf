"""Elimination and the choice of the method against exhaustive search."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.search.elimination import LARGEST_TABLE, Elimination
from autoplan.search.ilp import RELATIVE_GAP
from autoplan.search.problem import Choice, Node, Overlap, Problem, Reader, Tensor
from autoplan.search.solver import solve
from tests.unit.search_problems import exhaustive, random_problem, value_of

CASES = 400


@pytest.mark.parametrize("seed", range(0, CASES, 40))
def test_elimination_equals_exhaustive_search(seed: int) -> None:
    for number in range(seed, seed + 40):
        problem = replace(random_problem(number), overlaps=(), limit_pages=None)
        best = exhaustive(problem)
        least_s, choices = eliminated(problem)
        if best is None:
            assert least_s == math.inf, number
            continue
        assert problem.fixed_s + least_s == pytest.approx(best, abs=1e-12), number
        assert value_of(problem, choices)[0] == pytest.approx(best, abs=1e-12), number


@pytest.mark.parametrize("seed", range(0, CASES, 40))
def test_whatever_the_method_the_answer_is_the_best(seed: int) -> None:
    for number in range(seed, seed + 40):
        problem = random_problem(number)
        best = exhaustive(problem)
        solution = solve(problem, relative_gap=0.0)
        if best is None:
            assert solution is None, number
            continue
        assert solution is not None, number
        time_s, memory = value_of(problem, solution.choices)
        assert time_s == pytest.approx(best, abs=1e-10), number
        assert solution.time_s == pytest.approx(time_s, abs=1e-12), number
        assert solution.memory_pages == memory, number
        assert solution.bound_s == pytest.approx(best, rel=1e-6, abs=1e-10), number


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(CASES, 10 * CASES), gap=st.sampled_from([RELATIVE_GAP, 0.05]))
def test_a_gap_is_kept_and_its_bound_holds(seed: int, gap: float) -> None:
    problem = random_problem(seed)
    best = exhaustive(problem)
    solution = solve(problem, relative_gap=gap)
    assert (solution is None) == (best is None)
    if solution is not None and best is not None:
        assert solution.bound_s <= best + 1e-10
        assert solution.time_s <= solution.bound_s / (1 - gap) + 1e-10


def test_among_equal_choices_the_first_is_taken() -> None:
    problem = star(readers=3, conversion_s=0.0)
    assert eliminated(problem) == (0.0, (0, 0, 0, 0))


def test_tables_that_would_be_too_large_are_left_to_the_program() -> None:
    """Class 1 of each reader is 2 s faster than class 0; one conversion of 1 s serves them all."""
    readers = 20
    problem = star(readers, conversion_s=1.0, other_s=2.0)
    assert 2**readers > LARGEST_TABLE
    assert not Elimination(problem).is_small
    solution = solve(problem)
    assert solution is not None
    assert solution.time_s == pytest.approx(1.0)
    assert solution.choices == (0,) + (1,) * readers


@pytest.mark.parametrize(
    ("window_s", "taken", "time_s"),
    [(0.0, 0, 4.0), (3.0, 1, 3.0), (100.0, 1, 1.5)],
    ids=["nothing hides", "a part hides", "all that can hides"],
)
def test_messages_count_as_far_as_they_are_exposed(
    window_s: float, taken: int, time_s: float
) -> None:
    """4 s of compute, or 1 s of compute with 5 s of messages of which a tenth always counts."""
    overlap = Overlap(
        name="gradients",
        messages_s=((0, (0.0, 5.0)),),
        window_s=((0, (window_s, window_s)),),
        floor=0.1,
    )
    solution = solve(Problem(nodes=(node(4.0, 1.0),), tensors=(), overlaps=(overlap,)))
    assert solution is not None
    assert solution.choices == (taken,)
    assert solution.time_s == pytest.approx(time_s)


def eliminated(problem: Problem) -> tuple[float, tuple[int, ...]]:
    return Elimination(problem).minimise(
        [np.array([choice.time_s for choice in node.choices]) for node in problem.nodes]
    )


def node(*seconds: float) -> Node:
    choices = tuple(Choice(label=str(c), time_s=s) for c, s in enumerate(seconds))
    return Node(name="n", choices=choices)


def star(readers: int, conversion_s: float, other_s: float = 0.0) -> Problem:
    """One producer, and readers of two choices that want its classes 0 and 1."""
    tensor = Tensor(
        name="t",
        producer=0,
        classes=(0,),
        readers=tuple(Reader(node=v, ports=(0, 1)) for v in range(1, readers + 1)),
        conversion_s=((0.0, conversion_s),),
    )
    return Problem(nodes=(node(0.0), *(node(other_s, 0.0),) * readers), tensors=(tensor,))
