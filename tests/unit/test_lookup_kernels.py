"""Lookups cost what they touch: rows by the sector, numbers, and a gradient of the table's size."""

from __future__ import annotations

from math import prod

import pytest

from autoplan.search.kernels import kernels_of
from autoplan.search.lookup_kernels import lookup_work
from autoplan.sharding.mesh import MeshAxis
from autoplan.sharding.rules import GraphRules
from autoplan.sharding.strategies import Strategy
from autoplan.trace.graph import OpGraph, OpNode, Ref, TensorMeta
from cost_models.work import Streaming

WIDTH = 128
SORT = 264  # eight passes of 16 bytes in and out, and the keys counted once


def call(
    rows: int, count: int, ranks: int, label: str
) -> tuple[OpNode, list[TensorMeta], Strategy]:
    metas = [
        TensorMeta(shape=(rows, WIDTH), dtype="bfloat16", requires_grad=True),
        TensorMeta(shape=(count,), dtype="int64"),
    ]
    inputs = [
        OpNode(name=name, kind="input", target=name, outputs=(meta,))
        for name, meta in zip(("table", "ids"), metas, strict=True)
    ]
    made = TensorMeta(shape=(count, WIDTH), dtype="bfloat16", requires_grad=True)
    node = OpNode(
        name="call",
        kind="call",
        target="aten.embedding.default",
        args=(Ref("table"), Ref("ids")),
        outputs=(made,),
    )
    graph = OpGraph(nodes=(*inputs, node), blocks=(), output=Ref("call"), batch=2)
    offered = GraphRules(graph).strategies(node, MeshAxis("tp", ranks))
    return node, metas, next(strategy for strategy in offered if strategy.label == label)


def the_bytes(rows: int, count: int, ranks: int, label: str) -> tuple[float, float]:
    node, metas, strategy = call(rows, count, ranks, label)
    work = lookup_work(node, metas, strategy, ranks)
    (forward,), (backward,) = work.forward, work.backward
    assert isinstance(forward, Streaming)
    assert isinstance(backward, Streaming)
    return forward.bytes, backward.bytes


def test_the_forward_reads_rows_and_not_the_table():
    few, many = (the_bytes(rows, 64, 1, "replicate")[0] for rows in (1 << 10, 1 << 24))
    assert few == many == 64 * (256 + 8) + 64 * 256


def test_the_backward_fills_a_table_and_sorts_the_numbers():
    _, backward = the_bytes(1 << 20, 64, 1, "replicate")
    assert backward == (1 << 20) * 256 + 64 * (256 + SORT) + 2 * 64 * 256


def test_columns_narrower_than_a_sector_cost_a_sector():
    """128 columns of two bytes over 64 ranks are 4 bytes a row, and 32 are read for them."""
    forward, _ = the_bytes(1 << 10, 64, 64, "m")
    assert forward == 64 * (32 + 8) + 64 * 4
    assert the_bytes(1 << 10, 64, 8, "m")[0] == 64 * (32 + 8) + 64 * 32


def test_rows_of_others_are_looked_up_and_cleared():
    split, whole = the_bytes(1 << 10, 64, 8, "v")[0], the_bytes(1 << 10, 64, 1, "replicate")[0]
    assert split == whole + 64 * 40 + 2 * 64 * 256


@pytest.mark.parametrize("stored", [True, False])
def test_the_gradient_of_a_table_is_a_parameters_if_it_is_one(stored):
    node, metas, strategy = call(64, 8, 2, "m")
    moved = sum(prod(meta.shape) for meta in metas)
    found = kernels_of(node, metas, moved, strategy, 2, (stored, False))
    assert found.backward_weight == found.backward * stored
