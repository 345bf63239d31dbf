"""What keeps a plan from running is said before it is run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.codegen.runnable import obstacle
from autoplan.plan import Plan
from tests.distributed.plans import make_plan
from tests.parity.cases import BATCH, case
from tests.parity.choose import replicated
from tests.parity.stages import stages_at
from tests.parity.test_regions import regions


@pytest.fixture(scope="module")
def plan() -> Plan:
    graph = case("gpt").graph
    return make_plan(
        graph.fingerprint,
        global_batch=BATCH,
        pp=2,
        num_microbatches=2,
        regions=regions(replicated(graph, 1)),
        schedule="zero_bubble",
        stages=stages_at(graph, [0, 2]),
    )


def test_nothing_is_in_the_way(plan):
    assert obstacle(case("gpt").graph, plan) is None
    assert obstacle(case("gpt").graph, replace(plan, schedule="1f1b", zero=3, replicas=1)) is None
    root, layers = plan.regions
    alone = replace(layers, recomputed_operators=tuple(layers.operators)[:1])
    again = replace(plan, schedule="1f1b", regions=(root, alone))
    assert obstacle(case("gpt").graph, again) is None


def test_each_obstacle_has_its_cure(plan):
    root, layers = plan.regions
    alone = replace(layers, recomputed_operators=tuple(layers.operators)[:1])
    again = replace(layers, recomputed=layers.blocks)
    entered = replace(layers, reconverted_inputs=(0,))
    for wrong, cure in (
        (replace(plan, stages=()), "give every rank of the pipeline a stage"),
        (replace(plan, regions=(root, alone)), "recompute nothing, or use 1f1b"),
        (replace(plan, regions=(root, entered)), "recompute nothing, or use 1f1b"),
        (replace(plan, regions=(root, again)), "recompute nothing, or use 1f1b"),
        (replace(plan, schedule="dualpipe"), "use one of none, gpipe"),
    ):
        assert cure in (obstacle(case("gpt").graph, wrong) or "")
