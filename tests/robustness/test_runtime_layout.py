"""Where the pieces of a parameter lie."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from autoplan.runtime.layout import Box, ParameterLayout, dp_shard_dim
from autoplan.runtime.mesh import RankMesh

SHAPES = st.lists(st.integers(1, 9), max_size=3).map(tuple)
BOXES = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), min_size=2, max_size=2)


def ranks(dp: int, tp: int) -> list[RankMesh]:
    return [
        RankMesh(dp=dp, tp=tp, dp_rank=d, tp_rank=t, device=torch.device("cpu"), device_mesh=None)
        for d in range(dp)
        for t in range(tp)
    ]


@st.composite
def layouts(draw):
    dp, tp = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    shape = draw(SHAPES)
    splits = (
        [None, *(dim for dim, size in enumerate(shape) if size % tp == 0)] if tp > 1 else [None]
    )
    tp_dim = draw(st.sampled_from(splits))
    layout = ParameterLayout(shape=shape, tp_dim=tp_dim)
    dp_dim = dp_shard_dim(layout.tp_shape(tp), tp_dim, dp) if dp > 1 else None
    return ParameterLayout(shape=shape, tp_dim=tp_dim, dp_dim=dp_dim), dp, tp


@given(layouts())
def test_first_copies_cover_every_element_once(case):
    layout, dp, tp = case
    counted = torch.zeros(layout.shape, dtype=torch.int64)
    whole = Box((0,) * len(layout.shape), layout.shape)
    for mesh in ranks(dp, tp):
        box = layout.box(mesh)
        if layout.is_first_copy(mesh) and math.prod(box.shape):
            counted[box.within(whole)] += 1
    assert bool((counted == 1).all())


@given(layouts())
def test_an_uneven_shard_is_of_dim_0_and_not_nested(case):
    layout, dp, tp = case
    if layout.dp_dim is not None and layout.dp_dim in (layout.tp_dim, 1, 2):
        assert layout.tp_shape(tp)[layout.dp_dim] % dp == 0


@given(BOXES, BOXES)
def test_overlap_is_the_intersection_of_index_sets(first, second):
    one, other = (Box(*zip(*box, strict=True)) for box in (first, second))

    def indices(box: Box) -> set[tuple[int, int]]:
        rows, columns = (range(s, s + n) for s, n in zip(box.start, box.shape, strict=True))
        return {(row, column) for row in rows for column in columns}

    common = one.overlap(other)
    assert (indices(common) if common else set()) == indices(one) & indices(other)
