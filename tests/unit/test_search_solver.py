"""Elimination and the choice of the method against exhaustive search."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.search.elimination import LARGEST_TABLE, Elimination
from autoplan.search.fixing import restricted
from autoplan.search.ilp import RELATIVE_GAP
from autoplan.search.problem import Choice, Node, Overlap, Problem, Reader, Tensor
from autoplan.search.solver import solve
from autoplan.search.tables import conversion_tables, scopes
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


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10 * CASES))
def test_the_least_cost_with_every_choice(seed: int) -> None:
    problem = replace(random_problem(seed), overlaps=(), limit_pages=None, fixed_s=0.0)
    least = elimination_of(problem).least_with(single_of(problem), conversion_tables(problem))
    for number, decision in enumerate(problem.nodes):
        for choice in range(len(decision.choices)):
            kept = [tuple(range(len(node.choices))) for node in problem.nodes]
            kept[number] = (choice,)
            best = exhaustive(restricted(problem, kept))
            expected = math.inf if best is None else best
            assert least[number][choice] == pytest.approx(expected, abs=1e-12)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10 * CASES), data=st.data())
def test_a_restricted_problem_values_its_choices_as_the_whole(
    seed: int, data: st.DataObject
) -> None:
    problem = random_problem(seed)
    kept = [
        tuple(data.draw(st.permutations(range(len(node.choices)))))[: data.draw(st.integers(1, 4))]
        for node in problem.nodes
    ]
    fewer = restricted(problem, kept)
    choices = tuple(data.draw(st.integers(0, len(options) - 1)) for options in kept)
    before = tuple(options[choice] for options, choice in zip(kept, choices, strict=True))
    assert value_of(fewer, choices) == pytest.approx(value_of(problem, before))


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10 * CASES), share=st.floats(0.7, 1.3))
def test_what_is_below_a_time_is_found(seed: int, share: float) -> None:
    problem = random_problem(seed)
    best = exhaustive(problem)
    below_s = (best or 1.0) * share
    solution = solve(problem, relative_gap=0.0, below_s=below_s)
    assert (solution is None) == (best is None)
    if solution is not None and best is not None:
        assert solution.bound_s <= best + 1e-10
        assert value_of(problem, solution.choices)[0] == pytest.approx(solution.time_s)
        assert problem.limit_pages is None or solution.memory_pages <= problem.limit_pages
        assert min(solution.time_s, below_s) == pytest.approx(min(best, below_s), abs=1e-10)
        assert solution.bound_s >= min(best, below_s) - 1e-9


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
    assert not elimination_of(problem).is_small
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


def elimination_of(problem: Problem) -> Elimination:
    return Elimination([len(node.choices) for node in problem.nodes], scopes(problem))


def single_of(problem: Problem) -> list[np.ndarray]:
    return [np.array([choice.time_s for choice in node.choices]) for node in problem.nodes]


def eliminated(problem: Problem) -> tuple[float, tuple[int, ...]]:
    return elimination_of(problem).minimise(single_of(problem), conversion_tables(problem))


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
