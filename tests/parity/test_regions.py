"""Blocks of one kind in regions with placements of their own equal one device, cut or not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.codegen.choices import Choices
from autoplan.codegen.pipeline import emit_program
from autoplan.plan import RegionPlan
from autoplan.sharding.assignment import regions_of
from autoplan.sharding.placement import Shard
from tests.distributed.plans import make_plan
from tests.parity.cases import BATCH, case
from tests.parity.choose import recipe, replicated
from tests.parity.simulate import assert_same, sharded
from tests.parity.stages import stages_at
from tests.parity.test_recipes import MEGATRON, VOCABULARY


def regions(choices: Choices) -> tuple[RegionPlan, ...]:
    drawn = choices.assignment
    labels = {name: strategy.label for name, strategy in drawn.strategies.items()}
    return regions_of(choices.graph, labels, drawn.storage, drawn.entries)


@pytest.mark.parametrize("firsts", [(), (0, 2)])
def test_each_layer_has_placements_of_its_own(firsts):
    tested = case("tied-gpt")
    root, split = regions(recipe(tested.graph, 2, {**MEGATRON, **VOCABULARY}, Shard(1)))
    whole = regions(replicated(tested.graph, 2))[1]
    plan = make_plan(
        tested.graph.fingerprint,
        global_batch=BATCH,
        tp=2,
        pp=len(firsts) or 1,
        num_microbatches=2,
        regions=(
            root,
            replace(split, blocks=("layers.0",)),
            replace(whole, blocks=("layers.1",), recomputed=("layers.1",)),
        ),
        stages=stages_at(tested.graph, firsts) if firsts else (),
    )
    emitted = emit_program(tested.graph, plan)
    classes = [name for stage in emitted.stages for name in stage.block_classes.values()]
    assert len(set(classes)) == 2
    assert_same(sharded(emitted, tested.model, tested.batch), tested.truth())
