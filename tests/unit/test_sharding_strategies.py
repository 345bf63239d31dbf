"""Which strategies are offered: by axis, by size, by what readers want."""

from __future__ import annotations

import pytest

from autoplan.sharding.mesh import MeshAxis
from autoplan.sharding.placement import Partial, Replicate, Shard
from autoplan.sharding.rules import GraphRules, known
from autoplan.sharding.strategies import Port
from autoplan.trace.graph import OpGraph, OpNode, Ref, TensorMeta

TP, DP = MeshAxis("tp", 2), MeshAxis("dp", 2)
BATCH, SEQ, WIDTH = 4, 6, 8


def tensor(name, *shape, batch_dims=(), kind="input"):
    meta = TensorMeta(shape=shape, dtype="float32", batch_dims=batch_dims)
    return OpNode(name=name, kind=kind, target=name, outputs=(meta,))


def call(name, target, args, *shapes, batch_dims=(0,), **kwargs):
    metas = tuple(TensorMeta(shape=s, dtype="float32", batch_dims=batch_dims) for s in shapes)
    return OpNode(
        name=name,
        kind="call",
        target=target,
        args=args,
        kwargs=tuple(kwargs.items()),
        outputs=metas,
    )


def graph(*nodes):
    return OpGraph(nodes=nodes, blocks=(), output=Ref(nodes[-1].name), batch=BATCH)


def labels(made, name, axis):
    return [strategy.label for strategy in GraphRules(made).strategies(made.by_name[name], axis)]


def fused_projection(*readers, width=3 * WIDTH):
    return graph(
        tensor("x", BATCH, SEQ, WIDTH, batch_dims=(0,)),
        tensor("w", width, WIDTH, kind="parameter"),
        tensor("b", width, kind="parameter"),
        call(
            "linear",
            "aten.linear.default",
            (Ref("x"), Ref("w"), Ref("b")),
            (BATCH, SEQ, width),
        ),
        *readers,
    )


SPLIT = call(
    "split",
    "aten.split.Tensor",
    (Ref("linear"), WIDTH, 2),
    *[(BATCH, SEQ, WIDTH)] * 3,
)


def test_a_linear_layer_by_rows_columns_and_tokens():
    made = fused_projection()
    whole, tokens, columns, rows = GraphRules(made).strategies(made.by_name["linear"], TP)
    assert whole.inputs == (Port(Replicate(), Replicate()),) * 3
    assert not whole.splits_work

    assert tokens.label == "d1"
    term = Port(Replicate(), Partial())
    assert tokens.inputs == (Port(Shard(1), Shard(1)), term, term)
    assert tokens.outputs == (Shard(1),)

    assert columns.label == "n"
    assert columns.inputs == (term, Port(Shard(0), Shard(0)), Port(Shard(0), Shard(0)))
    assert columns.outputs == (Shard(2),)

    assert rows.label == "k"
    assert rows.inputs[:2] == (Port(Shard(2), Shard(2)), Port(Shard(1), Shard(1)))
    assert rows.inputs[2] == Port(Partial(), Replicate())
    assert rows.outputs == (Partial(),)
    assert rows.splits_work


def test_only_the_batch_is_split_on_the_batch_axes():
    made = fused_projection()
    assert labels(made, "linear", DP) == ["replicate", "d0"]
    assert labels(made, "linear", MeshAxis("mb", 2)) == ["replicate", "d0"]


def test_tp_leaves_dims_that_carry_the_batch_anywhere():
    """The sequence is merged with the batch, so it cannot be split before the merge either."""
    merge = call("merge", "aten.view.default", (Ref("linear"), (24, 24)), (BATCH * SEQ, 3 * WIDTH))
    made = fused_projection(merge)
    assert labels(made, "merge", TP) == ["replicate", "d1", "partial"]


def test_one_rank_has_nothing_to_choose():
    made = fused_projection(SPLIT)
    assert all(
        labels(made, name, MeshAxis("tp", 1)) == ["replicate"] for name in ("linear", "split")
    )


def test_uneven_letters_are_not_offered():
    made = fused_projection()
    assert labels(made, "linear", MeshAxis("tp", 3)) == ["replicate", "d1", "n"]
    assert labels(made, "linear", MeshAxis("tp", 5)) == ["replicate"]


def test_a_fused_projection_is_offered_in_the_parts_that_its_reader_takes():
    made = fused_projection(SPLIT)
    assert labels(made, "linear", TP) == ["replicate", "d1", "n", "n/3", "k"]
    fused = GraphRules(made).strategies(made.by_name["linear"], TP)[3]
    assert fused.inputs[1:] == (Port(Shard(0, 3), Shard(0, 3)), Port(Shard(0, 3), Shard(0, 3)))
    assert fused.outputs == (Shard(2, 3),)
    split = next(
        s for s in GraphRules(made).strategies(made.by_name["split"], TP) if s.label == "d2"
    )
    assert split.inputs == (Port(Shard(2, 3), Shard(2, 3)),)
    assert split.outputs == (Shard(2),) * 3


def test_parts_are_wanted_through_views():
    flat = call("flat", "aten.view.default", (Ref("linear"), (24, 24)), (BATCH * SEQ, 3 * WIDTH))
    heads = call(
        "heads", "aten.view.default", (Ref("flat"), (4, 6, 3, 2, 4)), (BATCH, SEQ, 3, 2, 4)
    )
    made = fused_projection(flat, heads)
    assert "n/3" in labels(made, "linear", TP)
    assert "d1/3" in labels(made, "flat", TP)


def test_parts_need_even_pieces():
    sizes = (WIDTH, WIDTH, WIDTH // 2)
    pieces = call(
        "split",
        "aten.split_with_sizes.default",
        (Ref("linear"), sizes, 2),
        *[(BATCH, SEQ, size) for size in sizes],
    )
    made = fused_projection(pieces, width=sum(sizes))
    assert labels(made, "linear", TP) == ["replicate", "d1", "n", "k"]
    assert labels(made, "split", TP) == ["replicate", "d1", "partial"]


@pytest.mark.parametrize(("kv_heads", "expected"), [(8, ["h"]), (4, ["h"]), (2, ["r"]), (1, ["r"])])
def test_grouped_queries_split_by_group_or_within_groups(kv_heads, expected):
    made = graph(
        *(
            tensor(name, BATCH, heads, SEQ, 4, batch_dims=(0,))
            for name, heads in (("q", 8), ("k", kv_heads), ("v", kv_heads))
        ),
        call(
            "attention",
            "aten.scaled_dot_product_attention.default",
            (Ref("q"), Ref("k"), Ref("v"), None, 0.0, True),
            (BATCH, 8, SEQ, 4),
            enable_gqa=True,
        ),
    )
    assert labels(made, "attention", MeshAxis("tp", 4)) == ["replicate", *expected]


def attention(keys, *given):
    return graph(
        *(
            tensor(name, BATCH, 3, places, 4, batch_dims=(0,))
            for name, places in (("q", SEQ), ("k", keys), ("v", keys))
        ),
        call(
            "attention",
            "aten.scaled_dot_product_attention.default",
            (Ref("q"), Ref("k"), Ref("v"), *given),
            (BATCH, 3, SEQ, 4),
        ),
    )


def test_queries_split_by_their_places_where_heads_do_not():
    causal, free = attention(SEQ, None, 0.0, True), attention(SEQ + 1)
    for made, stand_in in ((causal, "causal_attention_of_rows"), (free, None)):
        rows = {s.label: s for s in GraphRules(made).strategies(made.by_name["attention"], TP)}
        assert list(rows) == ["replicate", "s"]
        assert rows["s"].local_op == stand_in
        assert rows["s"].inputs[0].placement == rows["s"].outputs[0] == Shard(2)
        assert rows["s"].inputs[1] == Port(Replicate(), Partial())


def test_causal_queries_before_fewer_keys_stay_whole():
    assert labels(attention(SEQ - 1, None, 0.0, True), "attention", TP) == ["replicate"]


def test_rows_of_an_embedding_and_classes_of_a_loss_take_stand_ins():
    made = graph(
        tensor("ids", BATCH, SEQ, batch_dims=(0,)),
        tensor("table", 10, WIDTH, kind="parameter"),
        tensor("scores", BATCH * SEQ, 10, batch_dims=(0,)),
        tensor("target", BATCH * SEQ, batch_dims=(0,)),
        call("rows", "aten.embedding.default", (Ref("table"), Ref("ids")), (BATCH, SEQ, WIDTH)),
        call(
            "loss",
            "aten.cross_entropy_loss.default",
            (Ref("scores"), Ref("target"), None, 2, -100),
            (),
            batch_dims=(),
        ),
    )
    rows = {s.label: s for s in GraphRules(made).strategies(made.by_name["rows"], TP)}
    assert rows["v"].local_op == "vocab_parallel_embedding"
    assert rows["v"].outputs == (Partial(),)
    assert rows["m"].local_op is None
    loss = {s.label: s for s in GraphRules(made).strategies(made.by_name["loss"], TP)}
    assert loss["c"].local_op == "vocab_parallel_cross_entropy"
    assert loss["c"].outputs == (Replicate(),)
    assert labels(made, "loss", DP) == ["replicate", "d0"]


def test_an_unknown_operator_runs_whole():
    made = graph(tensor("x", 4, 8), call("odd", "mine.odd.default", (Ref("x"),), (4, 8)))
    assert not known("mine.odd.default")
    assert labels(made, "odd", TP) == ["replicate"]


def test_a_constant_is_no_sum():
    """x + 1 on partial sums would add 1 once per rank."""
    made = graph(
        tensor("x", 4, 8),
        call("shifted", "aten.add.Tensor", (Ref("x"), 1.0), (4, 8), batch_dims=()),
        call("doubled", "aten.add.Tensor", (Ref("x"), Ref("x")), (4, 8), batch_dims=()),
        call("inverse", "aten.div.Tensor", (1.0, Ref("x")), (4, 8), batch_dims=()),
    )
    assert "partial" not in labels(made, "shifted", TP)
    assert "partial" in labels(made, "doubled", TP)
    assert "partial" not in labels(made, "inverse", TP)


def test_truth_values_are_never_partial():
    meta = TensorMeta(shape=(4, 6), dtype="bool")
    mask = OpNode(name="mask", kind="input", target="mask", outputs=(meta,))
    view = OpNode(
        name="view",
        kind="call",
        target="aten.view.default",
        args=(Ref("mask"), (6, 4)),
        outputs=(TensorMeta(shape=(6, 4), dtype="bool"),),
    )
    made = graph(mask, view)
    assert labels(made, "view", TP) == ["replicate", "d0"]
