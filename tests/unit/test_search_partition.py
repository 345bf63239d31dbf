"""Cuts of a row of items: the best of all, found by trying all."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.search.pipeline.partition import partition
from autoplan.search.pipeline.ranges import Bands

SECONDS = st.sampled_from([0.0, 1.0, 1.0, 2.0, math.inf]) | st.floats(0, 5)


def bands(share, extra, shortest=1):
    """Of tables by rank, first item and end; nothing is read where a range has no items."""
    ends = len(share[0])
    of_share, of_extra = np.full((2, len(share), ends - shortest, ends), np.inf)
    for length in range(shortest, ends):
        for end in range(length, ends):
            for rank in range(len(share)):
                both = share[rank][end - length, end], extra[rank][end - length, end]
                if max(both) < math.inf:
                    of_share[rank, length - shortest, end] = both[0]
                    of_extra[rank, length - shortest, end] = both[1]
    return Bands(shortest=shortest, share=of_share, extra=of_extra)


def value(share, extra, cuts):
    ranges = list(enumerate(itertools.pairwise(cuts)))
    return sum(share[r][of] for r, of in ranges) + max(extra[r][of] for r, of in ranges)


def all_cuts(items, ranks, shortest):
    for inner in itertools.combinations(range(1, items), ranks - 1):
        cuts = (0, *inner, items)
        if all(end - start >= shortest for start, end in itertools.pairwise(cuts)):
            yield cuts


def least(share, extra, shortest):
    every = all_cuts(len(share[0]) - 1, len(share), shortest)
    return min((value(share, extra, cuts) for cuts in every), default=math.inf)


@st.composite
def tables(draw, most_items=6):
    """Tables of all ranks, some of them the same objects; nothing is read from i >= j."""
    items = draw(st.integers(1, most_items))

    def table():
        entries = np.full((items + 1, items + 1), -100.0)
        for start, end in itertools.combinations(range(items + 1), 2):
            entries[start, end] = draw(SECONDS)
        return entries

    pool = [(table(), table()) for _ in range(draw(st.integers(1, 3)))]
    ranks = [draw(st.sampled_from(pool)) for _ in range(draw(st.integers(1, min(4, items))))]
    return [share for share, _ in ranks], [extra for _, extra in ranks]


@settings(deadline=None, max_examples=100)
@given(tables=tables(), shortest=st.integers(1, 2))
def test_the_best_of_all_cuts(tables, shortest):
    share, extra = tables
    best = least(share, extra, shortest)
    found = partition(bands(share, extra, shortest))
    if best == math.inf:
        assert found is None
        return
    assert found.value == pytest.approx(best)
    assert found.value == found.share + found.extra
    assert found.cuts in list(all_cuts(len(share[0]) - 1, len(share), shortest))
    assert value(share, extra, found.cuts) == pytest.approx(best)


@settings(deadline=None, max_examples=50)
@given(tables=tables(), below=st.floats(0, 12))
def test_only_less_than_asked_for(tables, below):
    share, extra = tables
    best = least(share, extra, 1)
    found = partition(bands(share, extra), below=below)
    if best < below - 1e-9:
        assert found.value == pytest.approx(best)
    elif best > below + 1e-9:
        assert found is None


@settings(deadline=None, max_examples=30)
@given(tables=tables(), data=st.data())
def test_lower_tables_bound_from_below(tables, data):
    share, extra = tables
    best = least(share, extra, 1)
    less = st.floats(0, 2)
    lower = [[np.maximum(table - data.draw(less), 0.0) for table in of] for of in (share, extra)]
    found = partition(bands(*lower))
    assert (found is None) == (best == math.inf)
    assert found is None or found.value <= best + 1e-9


def test_arrays_of_all_ranks_are_read_rank_by_rank():
    rng = np.random.default_rng(1)
    share, extra = rng.random((2, 4, 9, 9))
    assert partition(bands(share, extra)).value == pytest.approx(least(share, extra, 1))


def test_a_share_can_be_worth_a_larger_extra():
    """Three items: an even cut has the least extra, the other one a share less by more."""
    share, extra = np.zeros((2, 4, 4)), np.zeros((2, 4, 4))
    share[0, 0, 1], share[0, 0, 2] = 10, 2
    extra[:, 0, 1], extra[:, 0, 2], extra[:, 1, 3], extra[:, 2, 3] = 1, 4, 1, 1
    found = partition(bands(share, extra))
    assert (found.cuts, found.share, found.extra) == ((0, 2, 3), 2, 4)


@pytest.mark.parametrize(("ranks", "shortest"), [(4, 1), (2, 2)])
def test_fewer_items_than_ranks_need(ranks, shortest):
    tables = [np.zeros((4, 4))] * ranks
    assert partition(bands(tables, tables, shortest)) is None


def test_many_alike_items_are_dealt_evenly():
    """128 items of 1 s on 16 ranks and 64 microbatches: 8 each, (m - 1) 8 + 128."""
    length = np.arange(129)[None, :] - np.arange(129)[:, None]
    share, extra = [length * 1.0] * 16, [63.0 * length] * 16
    found = partition(bands(share, extra))
    assert found.value == 63 * 8 + 128
    assert found.cuts == tuple(range(0, 129, 8))
