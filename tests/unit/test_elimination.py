"""Orders of elimination: every decision once, and no table beyond the largest."""

import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.search.elimination import LARGEST_TABLE, elimination_order

SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=14)


def largest_table(sizes, scopes, order) -> int:
    """Of the tables that eliminating in this order makes, entries of the largest."""
    near = {n: set() for n in range(len(sizes))}
    for scope in scopes:
        for a, b in itertools.permutations(scope, 2):
            near[a].add(b)
    largest = 0
    for number in order:
        others = near.pop(number)
        largest = max(largest, sizes[number] * math.prod(sizes[other] for other in others))
        for other in others:
            near[other] = (near[other] | others) - {other, number}
    return largest


@given(SIZES, st.data())
@settings(deadline=None, max_examples=100)
def test_every_decision_goes_once_and_tables_stay_small(sizes, data) -> None:
    pair = st.tuples(*[st.integers(0, len(sizes) - 1)] * 2).map(lambda p: tuple(sorted(set(p))))
    scopes = data.draw(st.lists(pair, max_size=20))
    order = elimination_order(sizes, scopes)
    if order is not None:
        assert sorted(order) == list(range(len(sizes)))
        assert largest_table(sizes, scopes, order) <= LARGEST_TABLE


def test_a_knot_of_decisions_has_no_order() -> None:
    sizes = [9] * 8
    assert elimination_order(sizes, itertools.combinations(range(8), 2)) is None


def test_a_grid_is_eliminated_from_its_short_side() -> None:
    """A grid of 3 x 12 decisions of 8 choices: tables of 8^4 along it, 8^12 across."""
    rows, columns = 3, 12
    number = {(r, c): r * columns + c for r in range(rows) for c in range(columns)}
    scopes = [
        (number[r, c], number[near])
        for r, c in number
        for near in ((r + 1, c), (r, c + 1))
        if near in number
    ]
    order = elimination_order([8] * len(number), scopes)
    assert order is not None
    assert largest_table([8] * len(number), scopes, order) <= 8**4
