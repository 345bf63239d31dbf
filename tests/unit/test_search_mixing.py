"""Columns of a rank's blocks: against all choices, and against fractions by a linear solver."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.linear_solver import pywraplp

from autoplan.search.pipeline.mixing import Group, fill, relaxed

FEW = st.integers(0, 9).map(float)
MANY = st.integers(0, 9000).map(float)


@st.composite
def groups(draw, most=3, most_columns=4, most_blocks=3):
    found = []
    for _ in range(draw(st.integers(1, most))):
        columns = draw(st.integers(1, most_columns))
        amounts = st.lists(draw(st.sampled_from([FEW, MANY])), min_size=columns, max_size=columns)
        passing = draw(st.sampled_from([st.just(0.0), st.integers(0, 3).map(float)]))
        found.append(
            Group(
                count=draw(st.integers(1, most_blocks)),
                cost_s=np.array(draw(amounts)),
                held_bytes=np.array(draw(amounts)),
                passing_bytes=np.array([draw(passing) for _ in range(columns)]),
            )
        )
    return found


def of_group(group):
    """Cost, held and passing bytes of every choice for the blocks of one group."""
    columns = range(len(group.cost_s))
    for chosen in itertools.combinations_with_replacement(columns, group.count):
        of = list(chosen)
        yield group.cost_s[of].sum(), group.held_bytes[of].sum(), group.passing_bytes[of].max()


def choices(every):
    """Cost and bytes of every choice for all groups."""
    for each in itertools.product(*map(list, map(of_group, every))):
        cost_s, held, passing = zip(*each, strict=True)
        yield sum(cost_s), sum(held) + max(passing)


def least_s(every, limit_bytes):
    return min((cost for cost, nbytes in choices(every) if nbytes <= limit_bytes), default=math.inf)


def check(every, mix, limit_bytes):
    """What a choice says of itself."""
    used = []
    for group, counts in zip(every, mix.counts, strict=True):
        assert sum(counts) == group.count
        assert min(counts) >= 0
        used += [(group, column, count) for column, count in enumerate(counts) if count]
    assert mix.cost_s == pytest.approx(sum(count * of.cost_s[c] for of, c, count in used))
    assert mix.held_bytes == pytest.approx(sum(count * of.held_bytes[c] for of, c, count in used))
    assert mix.passing_bytes == max(of.passing_bytes[c] for of, c, _ in used)
    assert mix.nbytes <= limit_bytes


@settings(deadline=None, max_examples=200)
@given(every=groups(), data=st.data())
def test_few_blocks_exactly(every, data):
    limits = FEW.map(lambda limit: limit * 6)
    if data.draw(st.booleans()):
        limits = st.sampled_from(sorted({nbytes for _, nbytes in choices(every)}))
    limit_bytes = data.draw(limits)
    best_s = least_s(every, limit_bytes)
    mix, loose = fill(every, limit_bytes), relaxed(every, limit_bytes)
    if best_s == math.inf:
        assert mix is None
        assert loose is None
        return
    check(every, mix, limit_bytes)
    assert mix.cost_s >= best_s - 1e-9
    assert mix.cost_s <= best_s * (1 + 1e-4) + 1e-9
    assert loose.cost_s <= best_s + 1e-9


def fractions_s(every, limit_bytes):
    """The linear program of each cap on passing bytes, solved by GLOP."""
    return min(
        under_cap_s(every, cap, limit_bytes)
        for cap in {float(passing) for group in every for passing in group.passing_bytes}
    )


def under_cap_s(every, cap_bytes, limit_bytes):
    solver = pywraplp.Solver.CreateSolver("GLOP")
    nbytes = solver.Constraint(-solver.infinity(), limit_bytes - cap_bytes)
    for group in every:
        blocks = solver.Constraint(group.count, group.count)
        for cost_s, held, passing in zip(
            group.cost_s, group.held_bytes, group.passing_bytes, strict=True
        ):
            if passing <= cap_bytes:
                share = solver.NumVar(0, solver.infinity(), "")
                blocks.SetCoefficient(share, 1)
                nbytes.SetCoefficient(share, float(held))
                solver.Objective().SetCoefficient(share, float(cost_s))
    solved = solver.Solve() == pywraplp.Solver.OPTIMAL
    return solver.Objective().Value() if solved else math.inf


@settings(deadline=None, max_examples=60)
@given(every=groups(most_columns=8, most_blocks=40), share=st.floats(0, 1))
def test_many_blocks_against_fractions(every, share):
    """Fractions as of a linear solver; whole blocks within the dearest step of one block."""
    fewest = sum(group.count * group.held_bytes.min() for group in every)
    most = sum(group.count * group.held_bytes.max() for group in every)
    limit_bytes = fewest + share * (most - fewest) + 2.0
    expected_s = fractions_s(every, limit_bytes)
    mix, loose = fill(every, limit_bytes), relaxed(every, limit_bytes)
    if expected_s == math.inf:
        assert mix is None
        assert loose is None
        return
    assert loose.cost_s == pytest.approx(expected_s, abs=1e-6)
    check(every, mix, limit_bytes)
    step_s = max(float(np.ptp(group.cost_s)) for group in every)
    assert loose.cost_s - 1e-9 <= mix.cost_s <= loose.cost_s + step_s + 1e-9


@settings(deadline=None, max_examples=60)
@given(every=groups(), share=st.floats(0, 1), other=st.floats(0, 1))
def test_the_price_of_a_byte_bounds_other_limits(every, share, other):
    """With one cap the least cost is convex in the limit: the price is its slope there."""
    alike = [
        Group(count=g.count, cost_s=g.cost_s, held_bytes=g.held_bytes, passing_bytes=0 * g.cost_s)
        for g in every
    ]
    most = sum(group.count * group.held_bytes.max() for group in alike)
    here, there = relaxed(alike, share * most), relaxed(alike, other * most)
    if here is None or there is None:
        return
    assert here.byte_price_s >= 0
    line_s = here.cost_s - here.byte_price_s * (other - share) * most
    assert there.cost_s >= line_s - 1e-6


def test_bytes_left_have_no_price():
    group = Group(
        count=5,
        cost_s=np.array([3.0, 1.0]),
        held_bytes=np.array([1.0, 4.0]),
        passing_bytes=np.array([2.0, 0.0]),
    )
    loose = relaxed([group], 21.0)
    assert (loose.cost_s, loose.byte_price_s) == (5.0, 0.0)
    assert fill([group], 21.0).counts == ((0, 5),)


def test_two_columns_and_one_odd_block():
    """Three blocks in 10 bytes: 3 s and 1 byte, 1 s and 5 bytes, or off the line 2.2 s and 4."""
    group = Group(
        count=3,
        cost_s=np.array([3.0, 1.0, 2.2]),
        held_bytes=np.array([1.0, 5.0, 4.0]),
        passing_bytes=np.zeros(3),
    )
    mix = fill([group], 10.0)
    assert mix.counts == ((1, 1, 1),)
    assert mix.cost_s == pytest.approx(6.2)
    loose = relaxed([group], 10.0)
    assert (loose.cost_s, loose.byte_price_s) == (5.5, 0.5)


def test_passing_bytes_count_once_and_can_decide():
    """Blocks that recompute hold 1 byte and pass 6 once, the others hold 3: six of those need 18
    bytes, and one byte less costs two of them."""
    group = Group(
        count=6,
        cost_s=np.array([2.0, 1.0]),
        held_bytes=np.array([1.0, 3.0]),
        passing_bytes=np.array([6.0, 0.0]),
    )
    assert fill([group], 18.0).counts == ((0, 6),)
    assert fill([group], 17.0).counts == ((4, 2),)
    assert fill([group], 14.0).counts == ((5, 1),)
    assert fill([group], 11.0) is None
