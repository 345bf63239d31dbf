"""Stages whose backward PyTorch would split wrongly are found in the graph."""

from __future__ import annotations

from typing import Any

import pytest

from autoplan.plan import StagePlan
from autoplan.sharding.split_backward import split_obstacle
from autoplan.trace.graph import Block, OpGraph, OpNode, Ref, TensorMeta

ACTIVATION = TensorMeta(shape=(4, 8), dtype="float32", batch_dims=(0,), requires_grad=True)
WEIGHT = TensorMeta(shape=(8,), dtype="float32", requires_grad=True)


def node(name: str, *reads: str, **fields: Any) -> OpNode:
    given = {"kind": "call", "target": "aten.mul.Tensor", "outputs": (ACTIVATION,)} | fields
    return OpNode(name=name, args=tuple(map(Ref, reads)), **given)


def weight(name: str, requires_grad: bool = True) -> OpNode:
    meta = TensorMeta(shape=(8,), dtype="float32", requires_grad=requires_grad)
    return node(name, kind="parameter", target=name, outputs=(meta,))


def graph(*behind: OpNode, output: str = "loss") -> OpGraph:
    """A root part that reads ``w0``, a block, and a root part of the given nodes and weights."""
    held = [n for n in behind if n.kind == "parameter"]
    calls = [n for n in behind if n.kind == "call"]
    x = node("x", kind="input", target="x", outputs=(TensorMeta(shape=(4, 8), dtype="float32"),))
    block = Block(
        path="block", kind="block", nodes=("block/mul",), inputs=(Ref("first"),),
        parameters=("w1",), outputs=(Ref("block/mul"),),
    )  # fmt: skip
    nodes = (
        x, weight("w0"), weight("w1"), *held,
        node("first", "x", "w0"), node("block/mul", "first", "w1"), *calls,
    )  # fmt: skip
    return OpGraph(nodes=nodes, blocks=(block,), output=Ref(output), batch=4)


STAGES = (
    StagePlan(rank=0, first="first", blocks=("block",)),
    StagePlan(rank=1, first="last", blocks=()),
)


def test_a_weight_that_is_read_beside_what_was_received_is_fine():
    assert split_obstacle(graph(weight("w2"), node("last", "block/mul", "w2"),
                                node("loss", "last")), STAGES) is None  # fmt: skip


def test_a_chain_of_single_readers_is_fine():
    chain = (node("last", "block/mul"), node("plus_one", "w2", outputs=(WEIGHT,)))
    assert split_obstacle(graph(weight("w2"), *chain, node("loss", "last", "plus_one")),
                          STAGES) is None  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        pytest.param(
            [node("last", "block/mul", "w2"), node("loss", "last", "w2")], "w2", id="two readers"
        ),
        pytest.param(
            [
                weight("w3"), node("last", "block/mul"),
                node("both", "w2", "w3", outputs=(WEIGHT,)), node("loss", "last", "both"),
            ],
            "w2", id="two weights meet first",
        ),
        pytest.param(
            [
                node("last", "block/mul"), node("made", "w2", outputs=(WEIGHT,)),
                node("once", "last", "made"), node("loss", "once", "made"),
            ],
            "w2", id="a result read twice",
        ),
    ],
)  # fmt: skip
def test_other_ways_are_named(parts, found):
    assert split_obstacle(graph(weight("w2"), *parts), STAGES).startswith(f"{found} is read by")


def test_a_stage_that_receives_nothing_with_a_gradient():
    frozen = TensorMeta(shape=(4, 8), dtype="float32", batch_dims=(0,))
    made = graph(weight("w2"), node("last", "block/mul", "w2"), node("loss", "last"))
    cut = OpGraph(
        nodes=tuple(
            node(n.name, *(ref.node for ref in n.operands), outputs=(frozen,))
            if n.name in ("first", "block/mul") else n
            for n in made.nodes
        ),
        blocks=made.blocks, output=made.output, batch=4,
    )  # fmt: skip
    assert "w2 is read by" in (split_obstacle(cut, STAGES) or "")


def test_the_first_stage_is_never_split():
    tail = (node("last", "block/mul"), node("loss", "last"))
    assert split_obstacle(graph(*tail), ()) is None
    assert split_obstacle(graph(*tail), STAGES[:1]) is None
