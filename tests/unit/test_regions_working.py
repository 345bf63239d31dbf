"""The amount that operators of the root have at work, against the larger of all of them."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autoplan.search.regions.terms import LAYER, Terms
from autoplan.search.regions.working_terms import add_working

_BYTES = st.integers(0, 9).map(float)


@given(st.lists(st.lists(_BYTES, min_size=1, max_size=3), min_size=1, max_size=4))
def test_it_is_no_more_than_the_largest_and_no_less_than_any_choice_leaves(working):
    terms = Terms(tuple(map(len, working)))
    add_working(working, terms)
    for choices in itertools.product(*map(range, terms.sizes)):
        held = [row[choice] for row, choice in zip(working, choices, strict=True)]
        priced = sum(
            table[LAYER["working_bytes"]][tuple(choices[number] for number in scope)]
            for scope, table in terms.tables.items()
        )
        assert max(map(min, working)) <= priced <= max(held)


def test_both_the_largest_at_most_and_the_largest_at_least_count():
    terms = Terms((2, 1, 2))
    add_working(((1.0, 9.0), (4.0,), (5.0, 6.0)), terms)
    (table,) = (found[LAYER["working_bytes"]] for found in terms.tables.values())
    assert np.array_equal(table, [[5.0, 6.0], [9.0, 9.0]])
