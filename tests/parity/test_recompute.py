"""Single operators that run again in the backward change nothing but what is held."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from autoplan.codegen.again import Again
from autoplan.codegen.emitted import Emitted
from autoplan.codegen.pipeline import emit_choices
from autoplan.sharding.placement import Replicate, Shard
from autoplan.trace.graph import OpGraph
from autoplan.trace.stack import stack_of
from tests.families import TINY
from tests.parity import counting
from tests.parity.again import random_again
from tests.parity.cases import Case, case
from tests.parity.choose import random_program, recipe, replicated
from tests.parity.simulate import Outcome, assert_same, sharded
from tests.parity.stages import stages_at
from tests.parity.test_recipes import LLAMA, MEGATRON, VOCABULARY
from tests.parity.test_zoo_families import AMPLIFIES_FLOAT32, NORMS_THE_BATCH
from tests.parity.test_zoo_families import case as family

RECIPES = {
    "gpt": ("gpt", MEGATRON, Replicate()),
    "tied": ("tied-gpt", {**MEGATRON, **VOCABULARY}, Shard(1)),
    "llama": ("hf-llama", LLAMA, Shard(1)),
}
DEGREES = [{"num_microbatches": 3}, {"dp": 2}, {"dp": 3, "num_microbatches": 2}]
FAMILIES = ["t5-small", "vit-b16", "qwen3-30b-a3b", "gemma2-9b"]


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("tp", [1, 2])
def test_random_operators_run_again(name, tp):
    model, weights, entry = RECIPES[name]
    tested, truth = case(model), case(model).truth()
    for seed, degrees in enumerate(DEGREES):
        again = random_again(tested.graph, seed)
        emitted = emit_choices(recipe(tested.graph, tp, weights, entry, again=again, **degrees), "")
        assert "again(" in emitted.source
        assert_same(sharded(emitted, tested.model, tested.batch), truth)


@pytest.mark.parametrize("name", ["gpt", "hf-llama", "hf-gpt2"])
@pytest.mark.parametrize("seed", range(3))
def test_random_operators_under_random_placements(name, seed):
    tested = case(name)
    emitted = random_program(
        tested.graph, 2, seed, num_microbatches=2, again=random_again(tested.graph, seed)
    )
    assert_same(sharded(emitted, tested.model, tested.batch), tested.truth())


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name):
    _check_family(name, 1, tp=2, dp=3)
    _check_family(name, 2, tp=1, num_microbatches=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 105))
@pytest.mark.parametrize("name", TINY)
def test_all_families(name, seed):
    count = 1 if name in NORMS_THE_BATCH else 2
    _check_family(name, seed, tp=(2, 4)[seed % 2], num_microbatches=count)


def _check_family(name: str, seed: int, *, tp: int, **degrees: int) -> None:
    tested = family(name)
    again = random_again(tested.graph, seed)
    emitted = random_program(tested.graph, tp, seed, again=again, **degrees)
    lowest = torch.float32 if name in AMPLIFIES_FLOAT32 else None
    assert_same(sharded(emitted, tested.model, tested.batch), tested.truth(), lowest)


@pytest.mark.parametrize("name", ["tied-gpt", "hf-llama", "t5-small"])
def test_in_stages(name):
    tested: Case = family(name) if name in TINY else case(name)
    stages = stages_at(tested.graph, range(len(stack_of(tested.graph).items)))
    emitted = random_program(
        tested.graph, 2, 5, num_microbatches=3, stages=stages, again=random_again(tested.graph, 5)
    )
    lowest = torch.float32 if name in AMPLIFIES_FLOAT32 else None
    assert_same(sharded(emitted, tested.model, tested.batch), tested.truth(), lowest)


@pytest.mark.parametrize("name", ["gpt", "hf-llama"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_on_one_device_it_is_the_same_to_the_bit(name, dtype):
    tested = case(name, dtype)
    plain = _run(emit_choices(replicated(tested.graph, 1), ""), tested)
    for seed in range(3):
        again = random_again(tested.graph, seed)
        found = _run(emit_choices(replicated(tested.graph, 1, again=again), ""), tested)
        assert torch.equal(found.loss, plain.loss)
        assert all(torch.equal(found.gradients[n], g) for n, g in plain.gradients.items())


def _run(emitted: Emitted, tested: Case) -> Outcome:
    return sharded(emitted, tested.model, tested.batch)


@pytest.mark.parametrize("name", ["gpt", "hf-llama"])
@pytest.mark.parametrize("seed", range(4))
def test_each_operator_runs_exactly_once_more_for_each_microbatch(name, seed):
    tested, count = case(name), 3
    again = random_again(tested.graph, seed)
    emitted = emit_choices(replicated(tested.graph, 1, num_microbatches=count, again=again), name)
    with counting.operators() as calls:
        _run(counting.counted(emitted), tested)
    once = Counter(node.target for node in tested.graph.of_kind("call"))
    repeated = Counter(
        tested.graph.by_name[name].target for each in again.values() for name in each.calls
    )
    assert repeated
    for target in repeated.keys() - {"aten.reshape.default"}:  # views of what is made again are too
        assert calls[target] == count * (once[target] + repeated[target]), target


def everything(graph: OpGraph, placed: str) -> dict[str, Again]:
    """All calls of a block whose target is this one."""
    return {
        block.path: Again(
            calls=frozenset(n for n in block.nodes if graph.by_name[n].target == placed),
            inputs=frozenset(),
        )
        for block in graph.blocks
    }


def test_a_gather_is_sent_again_where_its_source_is_made_again():
    """In sequence parallelism (Korthikanti et al. 2022, figure 5) what norms make is gathered."""
    graph = case("gpt").graph
    placed = recipe(graph, 2, MEGATRON, Shard(1))
    block = emit_choices(replace(placed, again=everything(graph, "aten.layer_norm.default")), "")
    lines = block.source.split("class ShardedModel")[0].split("def forward")[1].splitlines()
    gathers = [line for line in lines if "all_gather__reduce_scatter" in line]
    assert len(gathers) == 2
    assert all("again(all_gather__reduce_scatter, norm_" in line for line in gathers)


def test_a_gather_of_what_is_kept_is_kept():
    graph = case("gpt").graph
    placed = recipe(graph, 2, MEGATRON, Shard(1))
    again = everything(graph, "aten.linear.default")
    block = emit_choices(replace(placed, again=again), "").source.split("class ShardedModel")[0]
    assert "aten.linear.default, norm_2" in block
    assert "again(all_gather" not in block
