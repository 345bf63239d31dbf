"""The built module: original names, ties, units, recompute, compile, tracebacks."""

from __future__ import annotations

import traceback

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from autoplan.codegen.build import build_module
from autoplan.codegen.pipeline import emit_choices
from autoplan.codegen.units import unit_paths
from autoplan.runtime.collectives import AxisGroup
from autoplan.sharding.placement import Shard
from autoplan.trace.capture import capture
from tests.parity.cases import MODELS, case
from tests.parity.choose import choices, recipe, replicated
from tests.parity.models import GPT, initialise, language_batch
from tests.parity.simulate import assert_same, build_sharded, one_device, sharded
from tests.parity.test_recipes import MEGATRON, VOCABULARY

ALONE = AxisGroup("tp", 1, 0, "")


@pytest.mark.parametrize("name", MODELS)
def test_parameters_keep_their_names_and_ties(name):
    tested = case(name)
    emitted = emit_choices(replicated(tested.graph, 1), name)
    built = build_sharded(emitted, tested.model, ALONE)
    assert dict(built.named_parameters()).keys() == dict(tested.model.named_parameters()).keys()


@pytest.mark.parametrize("name", ["gpt", "hf-gpt2", "hf-llama"])
def test_blocks_are_units_at_their_paths(name):
    tested = case(name)
    emitted = emit_choices(replicated(tested.graph, 1), name)
    built = build_sharded(emitted, tested.model, ALONE)
    assert len(emitted.stages[0].unit_paths) == 2
    for path in emitted.stages[0].unit_paths:
        own = dict(tested.model.get_submodule(path).named_parameters())
        assert dict(built.get_submodule(path).named_parameters()).keys() == own.keys()
    assert len({type(built.get_submodule(path)) for path in emitted.stages[0].unit_paths}) == 1


def test_one_device_is_bit_identical_to_the_model():
    tested = case("gpt")
    emitted = emit_choices(replicated(tested.graph, 1), "gpt")
    found, truth = sharded(emitted, tested.model, tested.batch), tested.truth()
    assert torch.equal(found.loss, truth.loss)
    assert all(torch.equal(found.gradients[name], g) for name, g in truth.gradients.items())


@pytest.mark.parametrize("recomputed", [{"layers.0"}, {"layers.0", "layers.1"}])
def test_recompute_is_bit_identical(recomputed):
    tested = case("gpt")
    kept, again = (
        emit_choices(
            recipe(tested.graph, 2, {**MEGATRON, **VOCABULARY}, recomputed=frozenset(paths)), "gpt"
        )
        for paths in (set(), recomputed)
    )
    assert again.source.count("checkpoint(self.layers") == len(recomputed)
    first = sharded(kept, tested.model, tested.batch)
    second = sharded(again, tested.model, tested.batch)
    assert torch.equal(first.loss, second.loss)
    assert all(torch.equal(g, second.gradients[n]) for n, g in first.gradients.items())


class Borrowing(nn.Module):
    """Layers that share one matrix, which the first of them owns."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x) * self.scale
        return (x @ self.layers[1][0].weight).sum()


def test_a_block_whose_parameter_is_read_elsewhere_is_no_unit():
    graph = capture(Borrowing(), {"x": torch.randn(4, 8)})
    paths = [block.path for block in graph.blocks]
    assert "layers.1" in paths
    assert list(unit_paths(graph)) == [path for path in paths if path != "layers.1"]


def test_blocks_with_numbered_children_run():
    model, batch = initialise(Borrowing(), torch.float64), {"x": torch.randn(4, 8).double()}
    graph = capture(model, batch).at_batch(4)
    emitted = emit_choices(recipe(graph, 2, {"0.weight": 0}, dp=2), "borrowing")
    assert_same(sharded(emitted, model, batch), one_device(model, lambda: model(**batch)))


def test_tied_layers_pass_the_shared_parameter_in():
    model = GPT(layers=3)
    for layer in model.layers:
        layer.up.weight = model.layers[0].up.weight
    initialise(model, torch.float64)
    batch = language_batch(4)
    graph = capture(model, batch).at_batch(4)
    emitted = emit_choices(recipe(graph, 2, MEGATRON), "gpt")
    found = sharded(emitted, model, batch)
    model.zero_grad()
    model(**batch).backward()
    weight = model.layers[0].up.weight
    torch.testing.assert_close(found.gradients["layers.0.up.weight"], weight.grad)


def test_a_strategy_that_fails_shows_the_emitted_line():
    tested = case("gpt")
    emitted = emit_choices(replicated(tested.graph, 1), "gpt")
    built = build_sharded(emitted, tested.model, ALONE)
    try:
        built(torch.zeros(6, 8), torch.zeros(6, 8), (torch.tensor(1),))
    except RuntimeError:
        text = traceback.format_exc()
    assert "tokens = aten.embedding.default(local(self.tokens.weight), ids)" in text


def test_every_parameter_and_buffer_is_asked_for_once():
    tested = case("hf-llama")
    emitted = emit_choices(replicated(tested.graph, 1), "llama")
    asked: list[str] = []
    tensors = {**dict(tested.model.named_parameters()), **dict(tested.model.named_buffers())}

    def ask(name):
        asked.append(name)
        return tensors[name]

    build_module(emitted, emitted.stages[0], ask, ask, {"tp": ALONE})
    assert sorted(asked) == sorted([*emitted.parameters, *emitted.buffers])


def test_the_whole_module_compiles_without_breaks():
    tested = case("gpt")
    emitted = emit_choices(replicated(tested.graph, 1), "gpt")
    built = build_sharded(emitted, tested.model, ALONE)
    inputs = tuple(tested.batch.values())
    counts = built.count(*inputs)
    compiled = torch.compile(built, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs, counts), built(*inputs, counts))


def test_sharded_blocks_compile_without_breaks():
    tested = case("gpt")
    placed = recipe(tested.graph, 2, {**MEGATRON, **VOCABULARY}, Shard(1))
    emitted = emit_choices(placed, "gpt")
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        axis = AxisGroup("tp", 2, 1, dist.group.WORLD.group_name)
        built = build_sharded(emitted, tested.model, axis)
        inputs = tuple(tested.batch.values())
        compiled = torch.compile(built, fullgraph=True, backend="aot_eager")
        compiled(*inputs, built.count(*inputs)).backward()
        assert all(parameter.grad is not None for parameter in built.parameters())
    finally:
        dist.destroy_process_group()


def test_frozen_parameters_get_no_gradient():
    model = initialise(GPT(layers=1), torch.float64)
    model.layers[0].up.weight.requires_grad_(False)
    model.tokens.weight.requires_grad_(False)
    batch = language_batch(4)
    graph = capture(model, batch).at_batch(4)
    placed = choices(graph, 2, lambda _, offered, __: offered[-1])
    emitted = emit_choices(placed, "gpt")
    found = sharded(emitted, model, batch)
    assert (found.gradients["tokens.weight"] == 0).all()
    model(**batch).backward()
    torch.testing.assert_close(found.gradients["head.weight"], model.head.weight.grad)
