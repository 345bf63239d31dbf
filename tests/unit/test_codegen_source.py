"""Emitted source: a golden file to read, and names that try to break out of it."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from autoplan.codegen.emit import attribute, source_of
from autoplan.codegen.header import printable
from autoplan.codegen.naming import Names, class_name, identifier, variable
from autoplan.codegen.operators import is_random, operator, returns_list
from autoplan.codegen.pipeline import emit_choices
from autoplan.codegen.program import Call, Function, Value
from autoplan.codegen.sizes import local_arguments
from autoplan.errors import UnsupportedModelError
from autoplan.sharding.placement import Replicate, Shard
from autoplan.trace.capture import capture
from autoplan.trace.graph import BatchInt, OpNode, Ref, TensorMeta
from tests.parity.cases import MODELS, case
from tests.parity.choose import random_program, recipe, replicated
from tests.parity.models import GPT, initialise, language_batch
from tests.parity.simulate import assert_same, one_device, sharded
from tests.parity.stages import stages_at
from tests.parity.test_recipes import MEGATRON, VOCABULARY
from tests.unit.test_codegen_verify import one_stage

GOLDEN = Path(__file__).parent.parent / "golden" / "emitted_gpt_tp2.txt"
GOLDEN_STAGES = GOLDEN.with_name("emitted_gpt_pp2.txt")


def test_golden_source():
    """To accept a change: write ``found`` to the file, and read it."""
    tested = case("gpt")
    placed = recipe(
        tested.graph, 2, {**MEGATRON, **VOCABULARY}, Shard(1),
        dp=2, num_microbatches=3, recomputed=frozenset({"layers.1"}),
    )  # fmt: skip
    assert emit_choices(placed, "small-gpt").source == GOLDEN.read_text()


def test_golden_source_of_stages():
    """To accept a change: write ``found`` to the file, and read it."""
    tested = case("tied-gpt")
    stages = stages_at(tested.graph, [0, 2])
    found = emit_choices(replicated(tested.graph, 1, num_microbatches=3, stages=stages), "tied-gpt")
    assert found.source == GOLDEN_STAGES.read_text()
    assert max(map(len, found.source.splitlines())) <= 100


@pytest.mark.parametrize("name", MODELS)
def test_source_is_the_same_each_time_and_stays_within_100_columns(name):
    tested = case(name)
    first, second = (random_program(tested.graph, 4, 0).source for _ in range(2))
    assert first == second
    assert max(map(len, first.splitlines())) <= 100


@pytest.mark.parametrize(
    "text", ["a", "a.b", "lambda", "x'; import os", 'quo"te', "ünïcode", "0", "__dunder", "", "\n"]
)
def test_names_are_sanitised(text):
    assert identifier(text).isidentifier()
    name = Names().new(text)
    assert name.isidentifier()
    ast.parse(f"{name} = 1")
    ast.parse(attribute((text, "weight")))
    assert ast.parse(f'"""{printable(text)}"""')
    assert class_name(text).isidentifier()


def test_paths_read_like_the_model():
    assert attribute(("h", "0", "attn")) == "self.h[0].attn"
    assert attribute(("blocks", "00", "class")) == "getattr(getattr(self.blocks, '00'), 'class')"


def test_blocks_in_a_row_are_a_loop_unless_they_differ():
    model, batch = initialise(GPT(layers=8), torch.float64), language_batch(2)
    graph = capture(model, batch).at_batch(2)
    again = frozenset({"layers.6", "layers.7"})
    emitted = emit_choices(replicated(graph, 2, recomputed=again), "gpt")
    lines = [line.strip() for line in emitted.source.splitlines()]
    at = lines.index("for index in range(1, 6):")
    assert lines[at - 2] == "x = self.layers[0](add)"
    assert lines[at + 1] == "x = self.layers[index](x)"
    assert [line.split(",")[0] for line in lines[at + 2 : at + 4]] == [
        "x = checkpoint(self.layers[6]",
        "x = checkpoint(self.layers[7]",
    ]
    assert_same(sharded(emitted, model, batch), one_device(model, lambda: model(**batch)))


def test_reserved_and_taken_names_are_avoided():
    names = Names()
    assert [names.new("sum"), names.new("sum"), names.new("tp")] == ["sum_", "sum_2", "tp_"]


def test_variables_are_short():
    assert variable("h.0.attn.c_attn", "linear", inside="h.0", alone=True) == "c_attn"
    assert variable("h.0.attn", "view", inside="h.0", alone=False) == "attn_view"
    assert variable("h.0", "add", inside="h.0", alone=False) == "add"
    assert variable("a", "scaled_dot_product_attention", inside="", alone=False) == "a_sdpa"


def program_with(argument):
    out = Value(name="y", shape=(1,), dtype="float32", placement=Replicate())
    call = Call(
        target="aten.full.default", args=((1,), argument), kwargs=(), outputs=(out,),
        is_list=False, views=(None,), keeps=(),
    )  # fmt: skip
    made = Function(inputs=(), statements=(call,), outputs=(out,), frees=((),))
    return one_stage(forward=made, count=made)


@pytest.mark.parametrize("value", [0.1, -0.0, 1e300, math.inf, -math.inf, math.nan, 3, True, None])
def test_literals_are_exact(value):
    source = source_of(program_with(value), "header")
    line = next(line for line in source.splitlines() if "aten.full" in line)
    found = eval(line.split("[1], ")[1].rstrip(")") + ")" * line.count('("'))
    assert repr(found) == repr(value)


def test_other_literals_are_refused():
    with pytest.raises(UnsupportedModelError, match="complex"):
        source_of(program_with(1j), "header")


def test_operators_are_looked_up_by_name():
    assert operator("aten.linear.default") is torch.ops.aten.linear.default
    with pytest.raises(UnsupportedModelError, match=r"nowhere\.op\.default is not registered"):
        operator("nowhere.op.default")
    assert returns_list("aten.split.Tensor")
    assert returns_list("aten.native_layer_norm.default")
    assert not returns_list("aten.linear.default")


def node(target, *args, outputs=((4, 8),), **kwargs):
    metas = tuple(TensorMeta(shape=shape, dtype="float32") for shape in outputs)
    return OpNode(
        name="n", kind="call", target=target, args=args, kwargs=tuple(kwargs.items()), outputs=metas
    )


@pytest.mark.parametrize(
    ("call", "local", "expected"),
    [
        (node("aten.view.default", Ref("x"), (BatchInt(1), 16)), ((2, 4),), (2, 4)),
        (node("aten.expand.default", Ref("x"), (BatchInt(1), -1)), ((2, 4),), (2, 4)),
        (node("aten.split.Tensor", Ref("x"), 4, 1), ((2, 2), (2, 2)), 2),
        (node("aten.split_with_sizes.default", Ref("x"), (6, 2), -1), ((2, 3), (2, 1)), (3, 1)),
        (node("aten.unflatten.int", Ref("x"), -1, (4, 2)), ((2, 2, 2),), -1),
        (node("aten.mul.Tensor", Ref("x"), BatchInt(3)), ((2, 4),), 36),
    ],
)
def test_sizes_follow_the_shards_and_the_batch_elsewhere_is_global(call, local, expected):
    args, _ = local_arguments(call, local, batch=12)
    assert args[1] == expected


def test_random_operators():
    assert is_random(node("aten.dropout.default", Ref("x"), 0.1, True))
    assert not is_random(node("aten.dropout.default", Ref("x"), 0.0, True))
    assert not is_random(node("aten.dropout.default", Ref("x"), 0.1, False))
    qkv = (Ref("q"), Ref("k"), Ref("v"))
    sdpa = "aten.scaled_dot_product_attention.default"
    assert is_random(node(sdpa, *qkv, None, 0.1))
    assert not is_random(node(sdpa, *qkv, None, 0.0, True))
    assert is_random(node("aten.rand_like.default", Ref("x")))
    assert not is_random(node("aten.add.Tensor", Ref("x"), Ref("y")))


class Oddly(nn.Module):
    """Module names that Python cannot write, and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("class", nn.Linear(8, 8))
        self.add_module("a'b\"", nn.Linear(8, 8))
        self.parts = nn.ParameterList([nn.Parameter(torch.ones(8))])

    def forward(self, x: torch.Tensor, self_: torch.Tensor) -> torch.Tensor:
        x = getattr(self, "a'b\"")(getattr(self, "class")(x)) * self.parts[0]
        return (x * torch.tensor([1.0, float("inf")]).clamp(max=2.0).sum() + self_).sum()


def test_odd_names_and_constants_run():
    model, batch = Oddly().double(), {"x": torch.randn(4, 8).double(), "self_": torch.ones(4, 8)}
    graph = capture(model, batch).at_batch(4)
    emitted = emit_choices(replicated(graph, 2, dp=2), 'an "odd"\\ name\n')
    assert_same(sharded(emitted, model, batch), one_device(model, lambda: model(**batch)))


class Counting(nn.Module):
    """A part whose name the sharded program needs for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.count = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.count(x).sum()


def test_a_part_named_like_a_method_is_refused():
    graph = capture(Counting(), {"x": torch.randn(4, 8)}).at_batch(4)
    with pytest.raises(UnsupportedModelError, match="'count'"):
        emit_choices(replicated(graph, 1), "counting")
