"""Where the pieces of a parameter lie."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import torch
from hypothesis import given
from hypothesis import strategies as st

from autoplan.runtime.layout import Box, ParameterLayout, dp_shard_dim
from autoplan.runtime.mesh import RankMesh

SHAPES = st.lists(st.integers(1, 9), max_size=3).map(tuple)
BOXES = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), min_size=2, max_size=2)


def ranks(pp: int, dp: int, tp: int, replicas: int, outermost: Literal["pp", "dp"]):
    return [
        RankMesh(
            pp=pp, dp=dp, tp=tp, pp_rank=p, dp_rank=d, tp_rank=t, replicas=replicas,
            outermost=outermost, device=torch.device("cpu"), device_mesh=None,
        )
        for p in range(pp) for d in range(dp) for t in range(tp)
    ]  # fmt: skip


@st.composite
def layouts(draw):
    shards, tp = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    shape = draw(SHAPES)
    splits = (
        [None, *(dim for dim, size in enumerate(shape) if size % tp == 0)] if tp > 1 else [None]
    )
    tp_dim = draw(st.sampled_from(splits))
    layout = ParameterLayout(shape=shape, tp_dim=tp_dim)
    dp_dim = dp_shard_dim(layout.tp_shape(tp), tp_dim, shards) if shards > 1 else None
    return ParameterLayout(shape=shape, tp_dim=tp_dim, dp_dim=dp_dim), shards, tp


@given(layouts(), st.integers(1, 2), st.sampled_from([(1, (0,)), (3, (1,)), (3, (0, 2))]))
def test_first_copies_cover_every_element_once(case, replicas, pipeline):
    layout, shards, tp = case
    pp, holders = pipeline
    layout = replace(layout, pp_ranks=holders)
    counted = torch.zeros(layout.shape, dtype=torch.int64)
    whole = Box((0,) * len(layout.shape), layout.shape)
    for mesh in ranks(pp, shards * replicas, tp, replicas, "pp"):
        box = layout.box(mesh)
        if layout.is_first_copy(mesh) and math.prod(box.shape):
            counted[box.within(whole)] += 1
    assert bool((counted == 1).all())


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.sampled_from(["pp", "dp"]))
def test_ranks_are_numbered_with_the_outermost_axis_slowest(pp, dp, tp, outermost):
    meshes = ranks(pp, dp, tp, 1, outermost)
    slowest = "pp_rank" if outermost == "pp" else "dp_rank"
    ordered = sorted(meshes, key=lambda mesh: (getattr(mesh, slowest), mesh.rank))
    assert [mesh.rank for mesh in ordered] == list(range(pp * dp * tp))
    for mesh in meshes:
        assert mesh.rank_at(mesh.pp_rank) == mesh.rank
        peers = [
            other
            for other in meshes
            if (other.dp_rank, other.tp_rank) == (mesh.dp_rank, mesh.tp_rank)
        ]
        assert sorted(mesh.rank_at(p) for p in range(pp)) == sorted(other.rank for other in peers)


@given(layouts())
def test_an_uneven_shard_is_of_dim_0_and_not_nested(case):
    layout, shards, tp = case
    if layout.dp_dim is not None and layout.dp_dim in (layout.tp_dim, 1, 2):
        assert layout.tp_shape(tp)[layout.dp_dim] % shards == 0


@given(BOXES, BOXES)
def test_overlap_is_the_intersection_of_index_sets(first, second):
    one, other = (Box(*zip(*box, strict=True)) for box in (first, second))

    def indices(box: Box) -> set[tuple[int, int]]:
        rows, columns = (range(s, s + n) for s, n in zip(box.start, box.shape, strict=True))
        return {(row, column) for row in rows for column in columns}

    common = one.overlap(other)
    assert (indices(common) if common else set()) == indices(one) & indices(other)
