"""Stages whose backward PyTorch would split wrongly are found in the graph."""

from __future__ import annotations

from typing import Any

import pytest

from autoplan.plan import StagePlan
from autoplan.sharding.split_backward import split_obstacle, split_obstacle_of_any
from autoplan.trace.graph import Block, OpGraph, OpNode, Ref, TensorMeta
from autoplan.trace.stack import stack_of

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


def cuts(made: OpGraph) -> list[tuple[StagePlan, ...]]:
    """All ways to cut a graph of three items into stages."""
    items = stack_of(made).items
    found = []
    for firsts in ((0, 1), (0, 2), (0, 1, 2)):
        ends = (*firsts[1:], len(items))
        found.append(
            tuple(
                StagePlan(
                    rank=rank,
                    first=items[start].name,
                    blocks=tuple(item.name for item in items[start:end] if item.kind),
                )
                for rank, (start, end) in enumerate(zip(firsts, ends, strict=True))
            )
        )
    return found


BEHIND = {
    "fine": [node("last", "block/mul", "w2"), node("loss", "last")],
    "head tied to the first part": [node("last", "block/mul", "w0"), node("loss", "last")],
    "tied to the block": [node("last", "block/mul", "w1"), node("loss", "last")],
    "two readers": [node("last", "block/mul", "w2"), node("loss", "last", "w2")],
    "side that the block does not read": [
        node("side", "w2", outputs=(WEIGHT,)), node("last", "block/mul", "side"),
        node("loss", "last", "side"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", BEHIND)
def test_wherever_it_is_cut(name):
    made = graph(weight("w2"), *BEHIND[name])
    of_each = [split_obstacle(made, stages) for stages in cuts(made)]
    assert (split_obstacle_of_any(made) is None) == (of_each == [None] * len(of_each))


def test_a_model_of_one_part_is_never_split():
    x = node("x", kind="input", target="x", outputs=(TensorMeta(shape=(4, 8), dtype="float32"),))
    made = OpGraph(nodes=(x, weight("w"), node("loss", "x", "w")), blocks=(), output=Ref("loss"),
                   batch=4)  # fmt: skip
    assert split_obstacle_of_any(made) is None


def test_the_first_stage_is_never_split():
    tail = (node("last", "block/mul"), node("loss", "last"))
    assert split_obstacle(graph(*tail), ()) is None
    assert split_obstacle(graph(*tail), STAGES[:1]) is None
