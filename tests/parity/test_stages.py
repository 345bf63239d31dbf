"""All stages of a pipeline, one after another in one process, equal one device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from autoplan.codegen.pipeline import emit_choices
from autoplan.errors import PlanError
from autoplan.plan import StagePlan
from autoplan.sharding.placement import Shard
from autoplan.trace.graph import OpGraph
from autoplan.trace.stack import stack_of
from tests.parity.cases import MODELS, case
from tests.parity.choose import random_program, recipe, replicated
from tests.parity.simulate import assert_same, sharded
from tests.parity.stages import stages_at
from tests.parity.test_recipes import MEGATRON, VOCABULARY
from tests.parity.test_zoo_families import AMPLIFIES_FLOAT32
from tests.parity.test_zoo_families import case as family

FAMILIES = ["t5-small", "bart-base", "bert-base"]


def every_cut(graph: OpGraph) -> tuple[StagePlan, ...]:
    """Each item is a stage."""
    return stages_at(graph, range(len(stack_of(graph).items)))


@pytest.mark.parametrize("name", MODELS)
def test_a_cut_anywhere(name):
    tested, truth = case(name), case(name).truth()
    for item in range(1, len(stack_of(tested.graph).items)):
        stages = stages_at(tested.graph, [0, item])
        emitted = emit_choices(replicated(tested.graph, 1, num_microbatches=2, stages=stages), name)
        assert_same(sharded(emitted, tested.model, tested.batch), truth)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_stage_for_every_item(name):
    """Encoder outputs, biases and masks cross the stages between."""
    tested = family(name)
    placed = replicated(tested.graph, 1, dp=3, num_microbatches=2, stages=every_cut(tested.graph))
    lowest = torch.float32 if name in AMPLIFIES_FLOAT32 else None
    emitted = emit_choices(placed, name)
    assert_same(sharded(emitted, tested.model, tested.batch), tested.truth(), lowest)


@pytest.mark.parametrize("name", ["tied-gpt", "hf-llama"])
@pytest.mark.parametrize("seed", range(3))
def test_random_placements_between_stages(name, seed):
    tested = case(name)
    emitted = random_program(
        tested.graph, 2, seed, num_microbatches=3, stages=every_cut(tested.graph)
    )
    assert_same(sharded(emitted, tested.model, tested.batch), tested.truth())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
@pytest.mark.parametrize("name", [*MODELS, *FAMILIES])
def test_more_random_placements_between_stages(name, seed):
    tested = family(name) if name in FAMILIES else case(name)
    emitted = random_program(
        tested.graph, 4, seed, num_microbatches=2, stages=every_cut(tested.graph)
    )
    lowest = torch.float32 if name in AMPLIFIES_FLOAT32 else None
    assert_same(sharded(emitted, tested.model, tested.batch), tested.truth(), lowest)


def test_shards_cross_as_the_next_block_reads_them():
    graph = case("tied-gpt").graph
    placed = recipe(graph, 2, {**MEGATRON, **VOCABULARY}, Shard(1), stages=stages_at(graph, [0, 2]))
    first, last = emit_choices(placed, "gpt").stages
    assert first.sends == last.receives
    assert [(b.shape, b.dtype, b.requires_grad) for b in first.sends] == [
        ((6, 4, 16), "float64", True)
    ]
    assert "tokens.weight" in first.parameters
    assert "tokens.weight" in last.parameters
    assert (first.inputs, last.inputs) == ((0,), (1,))


def test_stages_that_are_no_ranges_are_refused():
    graph = case("gpt").graph
    good = stages_at(graph, [0, 2])
    for stages, message in (
        ((good[0], replace(good[1], first="layers.7")), "begins no part of the model"),
        ((good[1], good[0]), "do not cover the model in order"),
        ((good[0], replace(good[1], blocks=())), "has the blocks layers.1"),
    ):
        with pytest.raises(PlanError, match=message):
            emit_choices(replicated(graph, 1, stages=stages), "gpt")
