"""Without a pipeline, against the search that takes one choice for all blocks of a kind.

It is another formulation of nearly the same problem: without recomputing and with memory to spare
both have the same best plan. It lets a block leave its result as partial sums, which the next one
converts as it enters; where the search over pipelines places both alike, that is not in its space.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from autoplan.job import Job
from autoplan.plan import Plan
from autoplan.search.planner import plan_job
from autoplan.trace.graph import OpGraph
from tests.unit.region_graphs import random_model
from tests.unit.search_graphs import gated_mlp, job, small_cluster, two_kinds

CLUSTER = small_cluster()
SLACK = 1e-3
OF_PARTIAL_SUMS = 0.02


def random_case(seed: int) -> tuple[OpGraph, Job]:
    draw = Random(seed)
    tokens, width = draw.choice((16, 256)), draw.choice((32, 64, 256))
    graph = draw.choice(
        (
            lambda: random_model(seed),
            lambda: gated_mlp(draw.randint(1, 3), width=width, hidden=512, tokens=tokens),
            lambda: two_kinds(draw.randint(1, 2), width=width, tokens=tokens),
        )
    )()
    return graph, job(nodes=draw.choice((1, 1, 2)), gpus=draw.choice((1, 2, 4)), batch=16)


def leaves_partial_sums(plan: Plan) -> bool:
    """Whether some operator of a block is left as partial sums."""
    return any("partial" in region.operators.values() for region in plan.regions if region.blocks)


def check(seed: int) -> None:
    graph, asked = random_case(seed)
    alike = plan_job(graph, replace(asked, pins=replace(asked.pins, recompute=0)), CLUSTER)
    pins = replace(asked.pins, pp=1, recompute="none")
    joint = plan_job(graph, replace(asked, planned_only=True, pins=pins), CLUSTER)
    ratio = joint.estimate.step_s / alike.estimate.step_s
    assert ratio <= 1 + (OF_PARTIAL_SUMS if leaves_partial_sums(alike) else SLACK)
    same = replace(
        pins,
        dp=alike.mesh.dp,
        tp=alike.mesh.tp,
        zero=alike.zero,
        microbatch=alike.microbatch,
    )
    if not leaves_partial_sums(alike):
        again = plan_job(graph, replace(asked, planned_only=True, pins=same), CLUSTER)
        assert again.estimate.step_s == pytest.approx(alike.estimate.step_s, rel=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_no_slower(seed):
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20, 140))
def test_no_slower_many_more(seed):
    check(seed)
