"""From a plan's regions to the choices of every node, and back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.errors import PlanError
from autoplan.sharding.assignment import assign, regions_of, relative_name
from autoplan.sharding.placement import Partial, Replicate, Shard
from autoplan.trace.graph import Block, OpGraph, OpNode, Ref, TensorMeta

BATCH, WIDTH = 4, 8
STATE = TensorMeta(shape=(BATCH, WIDTH), dtype="float32", batch_dims=(0,), requires_grad=True)


def parameter(name, *shape):
    meta = TensorMeta(shape=shape, dtype="float32", requires_grad=True)
    return OpNode(name=name, kind="parameter", target=name, outputs=(meta,))


def linear(name, x, weight):
    args = (Ref(x), Ref(weight))
    return OpNode(name=name, kind="call", target="aten.linear.default", args=args, outputs=(STATE,))


def block(index, before):
    path = f"layers.{index}"
    return Block(
        path=path,
        kind="layers.0",
        nodes=(f"{path}.up/linear", f"{path}.down/linear"),
        inputs=(Ref(before),),
        parameters=(f"{path}.up.weight", "shared.weight"),
        outputs=(Ref(f"{path}.down/linear"),),
    )


@pytest.fixture
def graph():
    """Two blocks (up with an own weight, down with a shared one) between two root layers."""
    return OpGraph(
        nodes=(
            OpNode(name="x", kind="input", target="x", outputs=(STATE,)),
            parameter("first.weight", WIDTH, WIDTH),
            parameter("layers.0.up.weight", WIDTH, WIDTH),
            parameter("layers.1.up.weight", WIDTH, WIDTH),
            parameter("shared.weight", WIDTH, WIDTH),
            linear("first/linear", "x", "first.weight"),
            linear("layers.0.up/linear", "first/linear", "layers.0.up.weight"),
            linear("layers.0.down/linear", "layers.0.up/linear", "shared.weight"),
            linear("layers.1.up/linear", "layers.0.down/linear", "layers.1.up.weight"),
            linear("layers.1.down/linear", "layers.1.up/linear", "shared.weight"),
            linear("last/linear", "layers.1.down/linear", "shared.weight"),
        ),
        blocks=(block(0, "first/linear"), block(1, "layers.0.down/linear")),
        output=Ref("last/linear"),
        batch=BATCH,
    )


@pytest.fixture
def regions(graph):
    return regions_of(
        graph,
        strategies={
            "first/linear": "replicate",
            "layers.0.up/linear": "n",
            "layers.0.down/linear": "k",
            "last/linear": "replicate",
        },
        storage={
            "first.weight": Replicate(),
            "layers.0.up.weight": Shard(0),
            "shared.weight": Shard(1),
        },
        entries={"layers.0": (Replicate(),)},
        recomputed=frozenset({"layers.1"}),
    )


def test_names_are_relative_to_the_kind(regions):
    root, layers = regions
    assert root.operators == {"first/linear": "replicate", "last/linear": "replicate"}
    assert root.parameters == {"first.weight": "Replicate()", "shared.weight": "Shard(1)"}
    assert layers.kind == "layers.0"
    assert layers.blocks == ("layers.0", "layers.1")
    assert layers.recomputed == ("layers.1",)
    assert layers.operators == {"up/linear": "n", "down/linear": "k"}
    assert layers.parameters == {"up.weight": "Shard(0)", "shared.weight": "Shard(1)"}
    assert layers.inputs == ("Replicate()",)


def test_relative_names():
    assert relative_name("layers.0", "layers.0.up/linear") == "up/linear"
    assert relative_name("layers.0", "layers.0/add") == "add"
    assert relative_name("layers.0", "layers.01/add") == "layers.01/add"
    assert relative_name("", "/sum") == "/sum"


def test_every_block_of_a_kind_gets_its_choices(graph, regions):
    made = assign(graph, regions, 2)
    labels = {name: strategy.label for name, strategy in made.strategies.items()}
    assert labels == {
        "first/linear": "replicate",
        "layers.0.up/linear": "n",
        "layers.0.down/linear": "k",
        "layers.1.up/linear": "n",
        "layers.1.down/linear": "k",
        "last/linear": "replicate",
    }
    assert made.strategies["layers.1.down/linear"].outputs == (Partial(),)
    assert made.storage == {
        "first.weight": Replicate(),
        "layers.0.up.weight": Shard(0),
        "layers.1.up.weight": Shard(0),
        "shared.weight": Shard(1),
    }
    assert made.entries == {"layers.0": (Replicate(),), "layers.1": (Replicate(),)}


def changed(regions, index, **fields):
    made = list(regions)
    made[index] = replace(made[index], **fields)
    return made


@pytest.mark.parametrize(
    ("index", "fields", "message"),
    [
        (
            0,
            {"operators": {"first/linear": "replicate"}},
            "root region lacks operator 'last/linear'",
        ),
        (
            0,
            {"parameters": {"first.weight": "Replicate()", "shared.weight": "Replicate()"}},
            "parameter shared.weight is stored as Replicate.. in one region and as Shard.1. in",
        ),
        (
            0,
            {"parameters": {"first.weight": "Shard(3)", "shared.weight": "Shard(1)"}},
            r"parameter first.weight: shape \(8, 8\) cannot be Shard\(3\) over tp=2",
        ),
        (
            0,
            {"parameters": {"first.weight": "Split", "shared.weight": "Shard(1)"}},
            "parameter first.weight: 'Split' is not a placement",
        ),
        (
            0,
            {"parameters": {"first.weight": "Shard(0, parts=2)", "shared.weight": "Shard(1)"}},
            "parameter first.weight cannot be stored as",
        ),
        (1, {"kind": "layers.7"}, "the plan has region 'layers.7', which the model lacks"),
        (1, {"blocks": ("layers.0",)}, "region layers.0 lacks block 'layers.1'"),
        (1, {"recomputed": ("first",)}, "region layers.0 has recomputed block 'first'"),
        (1, {"inputs": ()}, "has 0 input placements, but the block reads 1"),
        (
            1,
            {"operators": {"up/linear": "q", "down/linear": "k"}},
            "layers.0.up/linear has no strategy 'q' with tp=2; choose one of replicate, d0, n, k",
        ),
        (
            1,
            {"operators": {"up/linear": "n", "down/linear": "k", "x/linear": "k"}},
            "region layers.0 has operator 'x/linear', which the model lacks",
        ),
        (
            1,
            {"inputs": ("Partial(sum)",)},
            r"block layers.0 reads first/linear as Partial\(sum\), but it is Shard\(1\)",
        ),
    ],
)
def test_what_does_not_fit_is_named(graph, regions, index, fields, message):
    base = regions
    if fields.get("inputs") == ("Partial(sum)",):
        operators = {"first/linear": "n", "last/linear": "replicate"}
        base = changed(regions, 0, operators=operators)
    with pytest.raises(PlanError, match=message):
        assign(graph, changed(base, index, **fields), 2)


def test_a_degree_that_does_not_divide_is_refused(graph, regions):
    with pytest.raises(PlanError, match="over tp=3"):
        assign(graph, regions, 3)


def test_blocks_of_a_kind_in_regions_of_their_own(graph, regions):
    root, layers = regions
    labels = {"up/linear": "replicate", "down/linear": "replicate"}
    whole = {"up.weight": "Replicate()", "shared.weight": "Shard(1)"}
    first = replace(layers, blocks=("layers.0",), recomputed=())
    second = replace(layers, blocks=("layers.1",), operators=labels, parameters=whole)
    made = assign(graph, [second, root, first], 2)
    assert made.strategies["layers.0.up/linear"].label == "n"
    assert made.strategies["layers.1.up/linear"].label == "replicate"
    assert made.storage["layers.1.up.weight"] == Replicate()
    assert made.entries == {"layers.0": (Replicate(),), "layers.1": (Replicate(),)}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([("layers.0", "layers.1"), ("layers.1",)], "the plan has block 'layers.1' twice"),
        ([("layers.0", "layers.1"), ()], "a region without blocks"),
        ([("layers.0",)], "region layers.0 lacks block 'layers.1'"),
    ],
)
def test_every_block_is_in_one_region(graph, regions, parts, message):
    root, layers = regions
    own = [replace(layers, blocks=blocks, recomputed=()) for blocks in parts]
    with pytest.raises(PlanError, match=message):
        assign(graph, [root, *own], 2)


def test_unknown_operators_that_run_again_are_named(graph, regions):
    alone = changed(regions, 1, recomputed_operators=("up/linear", "upper/linear"))
    with pytest.raises(
        PlanError, match="recomputed operator 'upper/linear', which the model lacks"
    ):
        assign(graph, alone, 2)
    known = changed(regions, 1, recomputed_operators=("up/linear",))
    assert assign(graph, known, 2) == assign(graph, regions, 2)
