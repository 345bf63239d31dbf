"""Programs against all assignments at once, as one array over all decisions."""

import math
import random
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.search.regions import program as program_module
from autoplan.search.regions import steps as steps_module
from autoplan.search.regions.program import Program, Structures
from autoplan.search.regions.terms import AMOUNTS, PRICED, Amounts, Terms


def random_terms(draw: random.Random, values: np.random.Generator) -> Terms:
    """Tables that hang together closely enough for steps over many decisions."""
    sizes = tuple(draw.choice([2, 3, 4]) for _ in range(6))
    terms = Terms(sizes)
    for _ in range(draw.randint(4, 8)):
        scope = tuple(sorted(draw.sample(range(len(sizes)), draw.randint(1, 3))))
        shape = [sizes[number] for number in scope]
        for name in draw.sample(AMOUNTS, 3):
            terms.add(scope, **{name: values.random(shape)})
        if draw.random() < 0.3:
            terms.block(scope, values.random(shape) < 0.1)
    return terms


def all_costs(terms: Terms, prices: Amounts) -> Amounts:
    """The cost of every assignment; infinite for those that cannot be."""
    total = np.zeros(terms.sizes)
    for scope, table in terms.tables.items():
        shape = [size if number in scope else 1 for number, size in enumerate(terms.sizes)]
        total = total + np.tensordot(prices, table[:PRICED], axes=1).reshape(shape)
        if scope in terms.blocked:
            total = total + np.where(terms.blocked[scope], math.inf, 0.0).reshape(shape)
    return total


@given(st.integers(0, 10**6), st.sampled_from([1, 1 << 11]), st.sampled_from([1, 1 << 18]))
@settings(deadline=None, max_examples=40)
def test_least_costs_are_those_of_all_assignments(seed: int, long: int, at_once: int) -> None:
    """However tables lie in memory, however many prices come at once, whatever came before."""
    values = np.random.default_rng(seed)
    known: Structures = {}
    with (
        patch.object(steps_module, "_LONG", long),
        patch.object(program_module, "_ENTRIES_AT_ONCE", at_once),
    ):
        for count in (3, 1, 2, 4):
            terms = random_terms(random.Random(seed), values)
            prices = values.random((count, PRICED))
            costs = [all_costs(terms, row) for row in prices]
            program = Program(terms, "a block", known)
            least = [pytest.approx(cost.min(), rel=1e-12) for cost in costs]
            assert program.least_values(prices).tolist() == least
            assert program.least(prices[0]) == least[0]
            if np.isfinite(costs[0].min()):
                assert costs[0][program.choices()] == least[0]
