"""What bounds of ranges are made of: few ranks for all, lengths that can matter, and cuts."""

from __future__ import annotations

import itertools
import math
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.search.pipeline.anchors import anchored
from autoplan.search.pipeline.objectives import Row, dealt
from autoplan.search.pipeline.range_rows import ModeRows, RangeRows, lengths_of
from cost_models.schedules import PipelineShape
from tests.unit import joint_configs
from tests.unit.joint_problems import all_cuts, random_problem

RATES = st.sampled_from([0.0, 1.0, 1.0, 1.01, 2.0]) | st.floats(0, 100)


@st.composite
def rows_of_ranks(draw):
    """Rates of ranks: lines between some of them, with rates of their own among them."""
    ends = draw(st.lists(st.tuples(RATES, RATES), min_size=2, max_size=4))
    rows = [ends[0]]
    for first, last in itertools.pairwise(ends):
        steps = draw(st.integers(1, 5))
        for step in range(1, steps + 1):
            rows.append(tuple(a + (b - a) * step / steps for a, b in zip(first, last, strict=True)))
    return np.array(rows)


@settings(deadline=None, max_examples=200)
@given(rows=rows_of_ranks())
def test_rates_made_of_those_of_few_ranks_are_never_above(rows):
    anchors, mix = anchored(rows)
    made = mix @ rows[anchors]
    assert (made <= rows * (1 + 1e-6) + 1e-12).all()
    assert (made >= 0.98 * rows * (1 - 1e-6) - 1e-12).all()
    assert made[anchors] == pytest.approx(rows[anchors])
    assert (mix >= 0).all()
    assert mix.sum(axis=1) == pytest.approx(1)


def test_rates_on_a_line_need_both_ends_only():
    ranks = np.arange(64.0)[:, None]
    anchors, mix = anchored(np.hstack([100 - ranks, np.full_like(ranks, 7.0)]))
    assert anchors == [0, 63]
    assert mix[21].tolist() == pytest.approx([2 / 3, 1 / 3])


def test_one_rank_is_its_own():
    anchors, mix = anchored(np.ones((1, 8)))
    assert (anchors, mix.tolist()) == ([0], [[1.0]])


def row_of(draw):
    """A row of items, as a schedule with one or several stages a rank deals with it."""
    ranks, each = draw.choice((1, 2, 3)), draw.choice((1, 1, 2, 3))
    while True:
        blocks = draw.randint(ranks * each, 9)
        before, after = draw.randint(0, 2), draw.randint(0, 2)
        is_block = (False,) * before + (True,) * blocks + (False,) * after
        if ranks == 1 or each == 1:
            shape = PipelineShape(schedule="1f1b", ranks=ranks, stages=ranks, microbatches=4)
            return Row(is_block=is_block, shape=shape)
        if dealt(is_block, ranks * each):
            shape = PipelineShape(
                schedule="interleaved_1f1b", ranks=ranks, stages=ranks * each, microbatches=ranks
            )
            return Row(is_block=is_block, shape=shape)


@settings(deadline=None, max_examples=100)
@given(seed=st.integers(0, 2**32 - 1), longest=st.integers(1, 13))
def test_ranges_allowed_are_those_of_some_cuts(seed, longest):
    row = row_of(Random(seed))
    wanted = set()
    for cuts in all_cuts(row):
        ranges = list(itertools.pairwise(cuts))
        if max(stop - first for first, stop in ranges) <= longest:
            wanted.update(enumerate(ranges))
    if not wanted:
        return
    lengths = lengths_of(row, longest)
    found = set()
    for rank, length, stop in np.argwhere(lengths.allowed):
        first = stop - lengths.shortest - length
        assert lengths.start[length, stop] == first
        found.add((rank, (first, stop)))
    assert found == wanted


@settings(deadline=None, max_examples=100)
@given(seed=st.integers(0, 2**32 - 1))
def test_means_are_those_of_blocks_at_one_place(seed):
    draw = Random(seed)
    row = row_of(draw)
    ranks, each = row.shape.ranks, row.shape.stages_per_rank
    values = np.array([[[draw.random()] for _ in range(each)] for _ in range(ranks)])
    for rank, of_blocks in itertools.product(range(ranks), (False, True)):
        by_place: dict[int, list[float]] = {}
        for stage, place in row.places(rank) if each > 1 else ():
            if (place >= 0) == of_blocks:
                by_place.setdefault(place, []).append(values[rank, stage, 0])
        means = [sum(found) / len(found) for found in by_place.values()]
        least = min(means, default=values[rank].min())
        assert row.means(values, of_blocks=of_blocks)[rank, 0] == pytest.approx(least)


def test_values_of_ranges_are_the_same_one_by_one():
    rng = np.random.default_rng(1)
    shape = PipelineShape(schedule="1f1b", ranks=3, stages=3, microbatches=4)
    lengths = lengths_of(Row(is_block=(True,) * 6, shape=shape), 4)
    tables = rng.random((2, 7, 7))
    rows = RangeRows(ends=rng.random((3, 7)), begins=rng.random((3, 7)), weights=rng.random((3, 2)))
    values = rows.over(lengths, lengths.of(tables))
    for rank, length, stop in np.argwhere(lengths.allowed):
        first = stop - lengths.shortest - length
        wanted = rows.ends[rank, stop] + rows.begins[rank, first]
        wanted += sum(rows.weights[rank] * tables[:, first, stop])
        assert values[rank, length, stop] == pytest.approx(wanted)
        assert rows.at(rank, first, stop, tables) == pytest.approx(wanted)


def test_ranges_are_told_apart_by_how_many_blocks_run_again():
    """Those of none and of one block are exact, those of more are no more than the least."""
    rng = np.random.default_rng(2)
    is_block = np.array([False, True, True, True, True, False])
    shape = PipelineShape(schedule="1f1b", ranks=3, stages=3, microbatches=4)
    lengths = lengths_of(Row(is_block=tuple(is_block.tolist()), shape=shape), 4)
    nothing, again = rng.random((2, 3, 6))
    least = np.where(is_block, np.minimum(nothing, again), nothing)
    modes = ModeRows(
        nothing=_summed(nothing),
        again=np.where(is_block, again - nothing, np.inf),
        above=np.where(is_block, again - least, np.inf),
    )
    tables = lengths.of(np.zeros((1, 7, 7)))
    found = modes.over(lengths, tables, _summed(least).over(lengths, tables))
    for rank, length, stop in np.argwhere(lengths.allowed):
        items = range(lengths.start[length, stop], stop)
        ways = itertools.product(*((False, True) if is_block[item] else (False,) for item in items))
        wanted = [math.inf] * 3
        for way in ways:
            values = (
                (again if made else nothing)[rank, item]
                for item, made in zip(items, way, strict=True)
            )
            number = min(2, sum(way))
            wanted[number] = min(wanted[number], sum(values))
        assert found[:2, rank, length, stop] == pytest.approx(wanted[:2])
        assert found[2, rank, length, stop] <= wanted[2] + 1e-9
        assert math.isinf(wanted[2]) == math.isinf(found[2, rank, length, stop])


def _summed(values: np.ndarray) -> RangeRows:
    """Sums of values by rank and item."""
    sums = np.concatenate([np.zeros((len(values), 1)), values.cumsum(axis=1)], axis=1)
    return RangeRows(ends=sums, begins=-sums, weights=np.zeros((len(values), 1)))


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), prices=st.lists(st.floats(1e-12, 1e-6), max_size=2))
def test_longer_ranges_would_change_no_bound(seed, prices):
    problem = random_problem(seed, joint_configs.staged, most_items=14)
    values = []
    for is_wide in (False, True):
        search = problem.search()
        bounds = search._bounds
        bounds.add([0.0, *prices], search._pricer)
        if is_wide:
            bounds.open_to(math.inf)
        for fitting in (False, True):
            found = bounds.cuts(fitting=fitting)
            values.append(found.value if found else math.inf)
    assert values[:2] == pytest.approx(values[2:])
