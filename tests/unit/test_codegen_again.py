"""Which statements of a block are marked to run again, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from autoplan.codegen.again import Again, again_of, marked
from autoplan.codegen.liveness import tidy
from autoplan.codegen.pipeline import emit_program
from autoplan.codegen.program import Call, Convert, Function, Held, Value, results, runs_again
from autoplan.codegen.runnable import obstacle
from autoplan.errors import PlanError
from autoplan.plan import RegionPlan
from autoplan.sharding.placement import Replicate
from autoplan.trace.capture import capture
from autoplan.trace.needed import needed_of_block
from tests.distributed.plans import make_plan
from tests.parity.cases import BATCH, case
from tests.parity.choose import replicated
from tests.parity.test_regions import regions

X = "x"
WEIGHT = Held(path=("w",), shape=(1,), dtype="float32", placement=Replicate())


def value(name: str) -> Value:
    return Value(name=name, shape=(1,), dtype="float32", placement=Replicate())


def call(name, *args, view=None, keeps=(), target="aten.op.default"):
    return Call(
        target=target, args=tuple(value(a) if isinstance(a, str) else a for a in args), kwargs=(),
        outputs=(value(name),), is_list=False, views=(value(view) if view else None,),
        keeps=keeps, node=name,
    )  # fmt: skip


def convert(name, source, function="all_gather__slice"):
    return Convert(
        function=function,
        source=value(source) if isinstance(source, str) else source,
        args=(0,),
        kwargs=(),
        output=value(name),
    )


def again(statements, calls=(), inputs=(), outputs=()):
    function = Function(
        inputs=(value(X),),
        statements=tuple(statements),
        outputs=tuple(map(value, outputs)),
        frees=((),) * len(statements),
    )
    made = marked(function, Again(calls=frozenset(calls), inputs=frozenset(inputs)))
    return made, [results(s)[0].name for s in made.statements if runs_again(s)]


def test_what_a_kept_reader_saves_in_another_placement_is_made_again_with_its_source():
    saved = [call("a", X), convert("b", "a"), call("c", "b", keeps=("b",))]
    assert again(saved, ["a"])[1] == ["a", "b"]
    assert again(saved)[1] == []
    unsaved = [call("a", X), convert("b", "a"), call("c", "b")]
    assert again(unsaved, ["a"])[1] == ["a"]
    assert again(unsaved, ["a", "c"])[1] == ["a", "b", "c"]


def test_a_conversion_of_what_is_kept_stays():
    statements = [call("a", X), convert("b", "a"), call("c", "b", keeps=("b",))]
    assert again(statements, ["c"])[1] == ["c"]


def test_inputs_are_converted_again_where_that_is_chosen():
    statements = [convert("b", X), call("c", "b", keeps=("b",))]
    assert again(statements, ["c"])[1] == ["c"]
    assert again(statements, ["c"], [0])[1] == ["b", "c"]


def test_a_weight_is_converted_again_if_all_its_readers_run_again():
    statements = [convert("w", WEIGHT), call("b", X, "w"), call("c", X, "w")]
    assert again(statements, ["b"])[1] == ["b"]
    assert again(statements, ["b", "c"])[1] == ["w", "b", "c"]


def test_what_renames_memory_does_not_run_again():
    statements = [
        convert("w", WEIGHT, "identity__all_reduce"),
        call("a", X, "w"),
        convert("r", "a", "identity__all_reduce"),
        call("t", "r", view="r"),
        call("v", "t", view="t", target="aten.reshape.default"),
        convert("g", "v"),
        call("d", "g", keeps=("g",)),
    ]
    assert again(statements, ["a"])[1] == ["a", "v", "g"]


def test_what_is_made_again_is_let_go_after_its_last_use():
    statements = [
        call("a", X),
        call("b", "a", keeps=("a",)),
        call("c", "b"),
        call("d", "c"),
    ]
    plain = tidy(again(statements, outputs=["d"])[0])
    assert plain.frees == ((), (), ("b",), ())
    made = tidy(again(statements, ["a", "c"], outputs=["d"])[0])
    assert made.frees == ((), ("a",), (), ())


@pytest.fixture(scope="module")
def layers() -> tuple[RegionPlan, RegionPlan]:
    root, own = regions(replicated(case("gpt").graph, 1))
    return root, own


def test_each_block_runs_its_own_operators_again(layers):
    graph, (root, own) = case("gpt").graph, layers
    first = replace(own, blocks=("layers.0",), recomputed_operators=("gelu", "attention.q/linear"))
    last = replace(own, blocks=("layers.1",), recomputed_operators=("norm_1/layer_norm",))
    assert again_of(graph, (root, first, last)) == {
        "layers.0": Again(
            calls=frozenset({"layers.0/gelu", "layers.0.attention.q/linear"}), inputs=frozenset()
        ),
        "layers.1": Again(calls=frozenset({"layers.1.norm_1/layer_norm"}), inputs=frozenset()),
    }
    plan = make_plan(graph.fingerprint, global_batch=BATCH, regions=(root, first, last))
    emitted = emit_program(graph, plan)
    assert len(set(emitted.stages[0].block_classes.values())) == 2
    assert emitted.source.count("@recomputing") == 2


def test_whole_blocks_and_what_the_backward_does_not_need_are_left_out(layers):
    graph, (root, own) = case("gpt").graph, layers
    every = replace(own, recomputed_operators=tuple(own.operators), recomputed=("layers.0",))
    found = again_of(graph, (root, every))
    assert found.keys() == {"layers.1"}
    assert found["layers.1"].calls == needed_of_block(graph, graph.blocks[1])
    assert "layers.1.down/linear" not in found["layers.1"].calls


def test_nothing_outside_blocks_runs_again(layers):
    graph, (root, own) = case("gpt").graph, layers
    outside = replace(root, recomputed_operators=("norm/layer_norm",))
    with pytest.raises(PlanError, match=r"^norm/layer_norm is outside the repeated layers"):
        again_of(graph, (outside, own))


class Noisy(nn.Module):
    """A layer with a noise that no dropout makes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(4, 4), nn.AlphaDropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.drop(self.linear(x)))


def test_what_draws_other_numbers_each_time_does_not_run_again():
    model = nn.Sequential(*(Noisy() for _ in range(3)))
    graph = capture(model, (torch.ones(2, 4), torch.ones(2, 4)), loss_fn=nn.functional.mse_loss)
    root, own = regions(replicated(graph, 1))
    (noise,) = (name for name in own.operators if "alpha_dropout" in name)
    again = replace(own, recomputed_operators=(noise,))
    plan = make_plan(graph.fingerprint, global_batch=2, regions=(root, again))
    assert "draws random numbers, and would draw others" in (obstacle(graph, plan) or "")
    with pytest.raises(PlanError, match="recompute whole blocks, or keep its result"):
        emit_program(graph, plan)
