"""Reduced terms against all assignments of random small ones."""

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.search.regions.dominance import needed
from autoplan.search.regions.program import Program
from autoplan.search.regions.reduction import Reduction, reduced
from autoplan.search.regions.terms import AMOUNTS, PRICED, Amounts, Terms

SEEDS = st.integers(0, 10**6)


def random_terms(draw: random.Random) -> Terms:
    """Few different amounts, so that many ways are equal, and others never better."""
    sizes = tuple(draw.choice([1, 2, 2, 3, 4]) for _ in range(draw.randint(2, 5)))
    terms = Terms(sizes)
    for _ in range(draw.randint(2, 7)):
        scope = tuple(sorted(draw.sample(range(len(sizes)), draw.randint(1, min(3, len(sizes))))))
        shape = [sizes[number] for number in scope]
        entries = math.prod(shape)
        for name in draw.sample(AMOUNTS, draw.randint(1, 3)):
            values = [draw.choice([0.0, 1.0, 2.0, draw.random()]) for _ in range(entries)]
            terms.add(scope, **{name: np.array(values).reshape(shape)})
        if draw.random() < 0.3:
            bars = np.array([draw.random() < 0.2 for _ in range(entries)])
            bars[draw.randrange(entries)] = False
            terms.block(scope, bars.reshape(shape))
    return terms


def amounts(terms: Terms, choices: tuple[int, ...]) -> Amounts:
    """What an assignment takes; infinite if it cannot be."""
    total = np.zeros(len(AMOUNTS))
    for scope, table in terms.tables.items():
        at = tuple(choices[number] for number in scope)
        total = total + table[(slice(None), *at)]
        if scope in terms.blocked and terms.blocked[scope][at]:
            total = total + math.inf
    return total


def everything(terms: Terms, taken: dict[int, int]) -> Amounts:
    """What all assignments take that have the choices taken."""
    options = [[taken[n]] if n in taken else range(size) for n, size in enumerate(terms.sizes)]
    return np.array([amounts(terms, choices) for choices in itertools.product(*options)])


def solved(found: Reduction, taken: dict[int, int], prices: Amounts) -> tuple[float, tuple]:
    """The least cost of what is left, and the choices that have it."""
    program = Program(found.terms.restricted(taken), "a block")
    value = program.least(prices)
    chosen = enumerate(program.choices())
    return value, found.complete([taken.get(number, choice) for number, choice in chosen])


@given(SEEDS)
@settings(deadline=None, max_examples=200)
def test_what_is_left_has_the_best_at_all_prices(seed: int) -> None:
    draw = random.Random(seed)
    terms = random_terms(draw)
    kept = draw.sample(range(len(terms.sizes)), draw.randint(0, 2))
    found = reduced(terms, kept, thoroughly=draw.random() < 0.5)
    assert all(found.terms.sizes[number] == terms.sizes[number] for number in kept)
    taken = {number: draw.randrange(terms.sizes[number]) for number in kept}
    ways = everything(terms, taken)
    for _ in range(4):
        prices = np.array([draw.choice([0.0, 1.0, draw.random()]) for _ in range(PRICED)])
        priced = [way @ prices if np.isfinite(way[0]) else math.inf for way in ways[:, :PRICED]]
        value, choices = solved(found, taken, prices)
        assert value == pytest.approx(min(priced), rel=1e-12)
        if np.isfinite(value):
            assert amounts(terms, choices)[:PRICED] @ prices == pytest.approx(value, rel=1e-12)
            assert all(choices[number] == choice for number, choice in taken.items())


@given(SEEDS)
@settings(deadline=None, max_examples=100)
def test_choices_are_needed_if_none_takes_as_little_of_everything(seed: int) -> None:
    draw = np.random.default_rng(seed)
    shape = draw.integers(1, 14), draw.integers(1, 5)
    table = draw.integers(0, 4, (3, *shape)).astype(float)
    barred = draw.random(shape) < 0.2
    found = needed(table, barred)
    for at in range(shape[1]):
        rows = [(math.inf,) if barred[n, at] else tuple(table[:, n, at]) for n in range(shape[0])]
        best = [
            not any(
                all(a <= b for a, b in zip(other, row, strict=False)) and (other != row or m < n)
                for m, other in enumerate(rows)
                if m != n and (len(other) > 1 or len(row) == 1)
            )
            for n, row in enumerate(rows)
        ]
        assert found[:, at].tolist() == best
