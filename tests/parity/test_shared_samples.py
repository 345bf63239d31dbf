"""Ranks of tp that share the samples of a microbatch train as one device.

At random, operators of any model may share them; recommenders do so behind their tables.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch

from autoplan.codegen.pipeline import emit_choices
from autoplan.errors import PlanError
from autoplan.sharding.mesh import MeshAxis
from autoplan.sharding.placement import Shard
from autoplan.sharding.rules import GraphRules
from autoplan.sharding.rules.batch_norm import BATCH_NORM
from autoplan.trace.capture import capture
from autoplan.trace.stack import stack_of
from tests.families import random_batch, real, tiny, traced
from tests.parity.cases import Case, case
from tests.parity.choose import own_samples, random_program
from tests.parity.dropping import dropping
from tests.parity.normed import batch_of, model_of
from tests.parity.simulate import assert_same, sharded
from tests.parity.stages import stages_at

DEGREES = [(2, 3, 1), (6, 1, 1)]
RECOMMENDERS, BATCH = ("dlrm-24b", "mmoe"), 24


@cache
def recommender(name: str) -> Case:
    torch.manual_seed(0)
    batch = random_batch(tiny(name), BATCH, torch.float64)
    return Case(real(name), batch, traced(name).at_batch(BATCH))


@pytest.mark.parametrize("name", ["tied-gpt", "mlp"])
def test_random_placements(name):
    tested, truth = case(name), case(name).truth()
    for seed, (tp, dp, microbatches) in enumerate(DEGREES):
        emitted = random_program(
            tested.graph, tp, seed, dp=dp, num_microbatches=microbatches, shares_samples=True
        )
        assert_same(sharded(emitted, tested.model, tested.batch), truth)


@pytest.mark.parametrize("name", ["mlp"])
def test_dropouts_of_own_samples_are_those_of_one_device(name):
    tested, truth = dropping(name), dropping(name).truth()
    stages = stages_at(tested.graph, range(len(stack_of(tested.graph).items)))
    for seed in range(2):
        emitted = random_program(
            tested.graph, 2, seed, num_microbatches=3, stages=stages, shares_samples=True
        )
        assert_same(sharded(emitted, tested.model, tested.batch), truth)


@pytest.mark.parametrize(("tp", "dp", "microbatches"), [(2, 1, 1), (4, 1, 3), (2, 3, 2), (8, 1, 1)])
@pytest.mark.parametrize("name", RECOMMENDERS)
def test_features_meet_their_samples(name, tp, dp, microbatches):
    tested = recommender(name)
    placed = own_samples(tested.graph, tp, dp=dp, num_microbatches=microbatches)
    emitted = emit_choices(placed, name)
    assert "all_to_all__all_to_all(" in emitted.source
    assert_same(sharded(emitted, tested.model, tested.batch), tested.truth())


def test_small_layers_run_on_own_samples_alone():
    """Every product has a rank's share of the samples, and only tables' rows are moved."""
    placed = own_samples(recommender("dlrm-24b").graph, 4, num_microbatches=3)
    source = emit_choices(placed, "dlrm").source
    products = [node for node in placed.graph.of_kind("call") if "linear" in node.target]
    for node in products:
        strategy = placed.assignment.strategies[node.name]
        assert strategy.outputs == (Shard(0),)
        assert placed.shape(node.operands[0], strategy.inputs[0].placement)[0] == BATCH // 3 // 4
    assert "= all_gather" not in source
    assert source.count("= all_to_all") == 3


def test_samples_that_the_ranks_do_not_divide_are_refused():
    placed = own_samples(recommender("mmoe").graph, 8, num_microbatches=2)
    with pytest.raises(PlanError, match=r"cannot be Shard\(0\) over 8 \(tp\)"):
        emit_choices(placed, "mmoe")


def test_ranks_of_tp_take_no_statistics_of_own_samples():
    graph = capture(model_of("mlp"), batch_of(BATCH))
    axis = MeshAxis("tp", 2, shares_samples=True)
    for node in graph.of_kind("call"):
        if node.target == BATCH_NORM:
            offered = GraphRules(graph).strategies(node, axis)
            assert Shard(0) not in {strategy.outputs[0] for strategy in offered}
