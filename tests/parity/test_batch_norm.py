"""BatchNorm with channels split over tp, in stages and recomputed blocks, equals one device."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from autoplan.codegen.again import Again
from autoplan.codegen.pipeline import emit_choices
from autoplan.errors import UnsupportedModelError
from autoplan.sharding.placement import Shard
from autoplan.trace.capture import capture
from autoplan.trace.stack import stack_of
from tests.parity.again import random_again
from tests.parity.choose import random_program, recipe, replicated
from tests.parity.normed import MODELS, batch_of, model_of
from tests.parity.simulate import assert_same, one_device, sharded
from tests.parity.stages import stages_at

COLUMNS = {"up.weight": 0, "up.bias": 0, "norm.weight": 0, "norm.bias": 0, "down.weight": 1}


def case(name: str):
    torch.manual_seed(0)
    model, batch = model_of(name), batch_of(6)
    graph = capture(model, batch).at_batch(6)
    alone = copy.deepcopy(model)
    return model, batch, graph, one_device(alone, lambda: alone(**batch))


@pytest.mark.parametrize("name", MODELS)
def test_graphs_have_one_operator_for_each(name):
    model, _, graph, _ = case(name)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm1d)]
    calls = [node for node in graph.of_kind("call") if "batch_norm" in node.target]
    assert {node.target for node in calls} == {"autoplan.batch_norm.default"}
    assert len(calls) == len(norms)


def test_channels_split_with_the_weights():
    model, batch, graph, truth = case("mlp")
    recomputed = frozenset(block.path for block in graph.blocks)
    emitted = emit_choices(recipe(graph, 2, COLUMNS, recomputed=recomputed), "mlp")
    assert "shard=[1, 1]" in emitted.source
    assert "tp_" not in emitted.source.split("synced_batch_norm(")[-1]
    assert_same(sharded(emitted, model, batch), truth)


@pytest.mark.parametrize("seed", range(3))
def test_operators_that_run_again(seed):
    model, batch, graph, truth = case("mlp")
    norms = {
        block.path: Again(
            calls=frozenset(n for n in block.nodes if n.endswith("batch_norm")), inputs=frozenset()
        )
        for block in graph.blocks
    }
    for again in (norms, random_again(graph, seed)):
        emitted = emit_choices(recipe(graph, 2, COLUMNS, again=again), "mlp")
        assert "again(" in emitted.source
        assert_same(sharded(emitted, model, batch), truth)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", range(3))
def test_random_placements_in_stages(name, seed):
    model, batch, graph, truth = case(name)
    stages = stages_at(graph, range(len(stack_of(graph).items)))
    emitted = random_program(graph, 4, seed, stages=stages)
    assert_same(sharded(emitted, model, batch), truth)


def test_microbatches_are_refused():
    *_, graph, _ = case("mlp")
    with pytest.raises(
        UnsupportedModelError, match=r"norm/batch_norm takes statistics .* one micro"
    ):
        emit_choices(replicated(graph, 1, num_microbatches=2), "mlp")
    emitted = emit_choices(replicated(graph, 1, dp=2), "mlp")
    assert "over=dp" in emitted.source


def test_frozen_statistics_split_like_any_operator():
    model = model_of("mlp")
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eval()
    batch = batch_of(6)
    graph = capture(model, batch).at_batch(6)
    truth = one_device(model, lambda: model(**batch))
    placed = recipe(graph, 2, COLUMNS, dp=3, num_microbatches=2)
    assert_same(sharded(emit_choices(placed, "mlp"), model, batch), truth)
    placed = recipe(graph, 2, COLUMNS, Shard(1), dp=1, num_microbatches=3)
    assert_same(sharded(emit_choices(placed, "mlp"), model, batch), truth)
