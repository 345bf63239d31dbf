"""What a plan keeps when it is cut down: axes, stages, and every way to run a block."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.errors import PlanError
from autoplan.plan import MeshPlan, Plan, StagePlan
from autoplan.trace.capture import capture
from autoplan.verification.cut import carried_over, ways
from autoplan.verification.degrees import small_degrees, words
from tests.distributed.greedy import greedy_regions
from tests.distributed.plans import make_plan
from tests.parity.models import GPT, language_batch
from tests.parity.stages import stages_at


def _plan(pp: int, dp: int, tp: int, replicas: int = 1, per_rank: int = 1, many: int = 8) -> Plan:
    plan = make_plan("", global_batch=3 * dp * many, dp=dp, tp=tp, num_microbatches=many)
    stages = tuple(StagePlan(rank=i % pp, first=str(i), blocks=()) for i in range(pp * per_rank))
    return replace(
        plan, mesh=MeshPlan(pp=pp, dp=dp, tp=tp), replicas=replicas, stages=stages * (pp > 1)
    )


def test_every_axis_keeps_two_ranks() -> None:
    plan = _plan(16, 128, 8, per_rank=4)
    degrees = small_degrees(plan)
    assert (degrees.pp, degrees.dp, degrees.tp, degrees.stages) == (2, 2, 2, 4)
    assert (degrees.num_microbatches, degrees.microbatch) == (4, 2)
    assert list(words(plan, degrees))[:3] == ["pp 16 -> 2", "dp 128 -> 2", "tp 8 -> 2"]


def test_hybrid_sharding_keeps_replicas_and_what_shares() -> None:
    degrees = small_degrees(_plan(1, 12, 1, replicas=3))
    assert (degrees.shards, degrees.replicas, degrees.dp) == (2, 3, 6)


def test_few_ranks_give_up_dp_first_and_many_let_axes_grow() -> None:
    plan = _plan(4, 64, 8)
    assert [
        (d.pp, d.dp, d.tp) for d in (small_degrees(plan, ranks) for ranks in (1, 2, 4, 8, 16))
    ] == [(1, 1, 1), (1, 1, 2), (2, 1, 2), (2, 2, 2), (2, 2, 4)]


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12), st.integers(1, 64))
def test_degrees_divide_those_of_the_plan(pp: int, dp: int, tp: int, ranks: int) -> None:
    degrees = small_degrees(_plan(pp, dp, tp, many=2 * pp), ranks)
    assert degrees.world_size <= ranks
    assert pp % degrees.pp == dp % degrees.dp == tp % degrees.tp == 0
    if degrees.pp > 1:
        assert degrees.num_microbatches % degrees.pp == 0


def test_no_ranks_are_refused() -> None:
    with pytest.raises(PlanError, match="--ranks 0: give 1 to"):
        small_degrees(_plan(1, 2, 1), 0)


def test_every_way_to_run_a_block_is_in_the_small_plan() -> None:
    whole, small = (capture(GPT(layers=layers), language_batch(2)).at_batch(8) for layers in (8, 4))
    root, region = greedy_regions(whole, 2)
    paths = region.blocks
    other = replace(region, blocks=paths[3:5])
    first = replace(region, blocks=(*paths[:3], *paths[5:]), recomputed=paths[6:])
    plan = replace(
        make_plan(whole.fingerprint, global_batch=16, pp=4, tp=2, num_microbatches=8),
        regions=(root, first, other),
        stages=stages_at(whole, (0, 3, 5, 9)),
        schedule="1f1b",
    )
    assert [len(found) for found in ways(whole, plan).values()] == [4]
    cut = carried_over(plan, whole, small, small_degrees(plan))
    assert [(r.blocks, r.recomputed) for r in cut.regions] == [
        ((), ()),
        (("layers.0", "layers.2", "layers.3"), ("layers.3",)),
        (("layers.1",), ()),
    ]
    assert [stage.blocks for stage in cut.stages] == [("layers.0", "layers.1", "layers.2",
                                                       "layers.3"), ()]  # fmt: skip
    assert cut.stages[1].first == stages_at(small, (0, 5))[1].first


def test_stages_of_the_whole_model_are_joined() -> None:
    graph = capture(GPT(layers=4), language_batch(2)).at_batch(8)
    plan = replace(
        make_plan(graph.fingerprint, global_batch=16, pp=4, num_microbatches=8),
        regions=greedy_regions(graph, 1),
        stages=stages_at(graph, (0, 2, 3, 4)),
        schedule="1f1b",
    )
    cut = carried_over(plan, graph, graph, small_degrees(plan))
    assert cut.regions == plan.regions
    assert cut.stages == stages_at(graph, (0, 3))
