"""Which candidates a job has, and what is said about pins that cannot hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.errors import PlanError
from autoplan.job import Pins
from autoplan.search.candidates import Candidate, admissible_tp, enumerate_candidates
from autoplan.search.pins import divisors
from autoplan.search.pricing import Pricing
from tests.unit.search_graphs import gated_mlp, job, small_cluster

ODD = gated_mlp(2, width=12, hidden=12, tokens=3)


def candidates(graph=ODD, *, mixing=(), **asked) -> tuple[Candidate, ...]:  # type: ignore[no-untyped-def]
    wanted = job(**asked)
    pricing = Pricing(graph, wanted, small_cluster(gpus_per_node=16))
    return enumerate_candidates(graph, wanted, mixing=mixing, strategies_of=pricing.strategies_of)


def test_every_mesh_stage_and_microbatch() -> None:
    found = set(candidates(gpus=4, batch=8))
    expected = {
        Candidate(dp=dp, tp=4 // dp, zero=zero, microbatch=size, num_microbatches=8 // dp // size)
        for dp in (1, 2, 4)
        for zero in (range(4) if dp > 1 else (0,))
        for size in divisors(8 // dp)
    }
    assert found == expected


def test_degrees_are_those_that_split_all_heavy_work() -> None:
    """12 features and 3 tokens split over 1, 2, 3, 4, 6 or 12 ranks, never over 8."""
    wanted = job(gpus=8, batch=8)
    pricing = Pricing(ODD, wanted, small_cluster(gpus_per_node=8))
    assert admissible_tp(ODD, wanted, pricing.strategies_of) == (1, 2, 4)


def test_a_data_parallel_degree_leaves_tp_open_where_pipelines_are_planned() -> None:
    """Eight devices: dp 2 leaves pp x tp = 4, and pp 2 with it leaves tp 2."""
    wanted = job(gpus=8, batch=8, dp=2)
    pricing = Pricing(ODD, wanted, small_cluster(gpus_per_node=8))

    def degrees(planned_only: bool, **pins: int) -> tuple[int, ...]:
        asked = replace(wanted, planned_only=planned_only, pins=Pins(**pins))
        return admissible_tp(ODD, asked, pricing.strategies_of)

    assert degrees(False, dp=2) == (4,)
    assert degrees(True, dp=2) == (1, 2, 4)
    assert degrees(True, dp=2, pp=2) == (2,)
    assert degrees(True, pp=4) == (1, 2, 4)
    with pytest.raises(PlanError, match="dp=1 needs tp=8, which cannot"):
        degrees(True, dp=1, pp=1)


def test_a_batch_that_does_not_divide_leaves_fewer_meshes() -> None:
    assert {candidate.dp for candidate in candidates(gpus=4, batch=6)} == {1, 2}


def test_a_graph_that_mixes_the_batch_stays_whole() -> None:
    found = candidates(gpus=4, batch=8, mixing=("norm: needs the whole batch",))
    assert {(c.dp, c.microbatch, c.num_microbatches) for c in found} == {(1, 8, 1)}


def test_zero_with_one_data_parallel_rank_is_accepted() -> None:
    found = candidates(gpus=4, batch=8, dp=1, zero=3)
    assert {(c.dp, c.zero) for c in found} == {(1, 3)}


def test_pins_are_honoured() -> None:
    found = candidates(gpus=4, batch=8, tp=2, zero=1, microbatch=2)
    assert found == (Candidate(dp=2, tp=2, zero=1, microbatch=2, num_microbatches=2),)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"gpus": 8, "tp": 3}, "tp=3 does not divide the 8 GPUs; tp can be 1, 2, 4, 8"),
        ({"gpus": 8, "dp": 5}, "dp=5 does not divide the 8 GPUs; dp can be 1, 2, 4, 8"),
        ({"gpus": 8, "tp": 8}, "tp=8 cannot split inp/linear: its sizes do not divide into 8"),
        ({"gpus": 8, "tp": 8}, "tp can be 1, 2, 4"),
        ({"gpus": 8, "dp": 1}, "dp=1 needs tp=8, which cannot split inp/linear"),
        ({"gpus": 4, "dp": 4, "tp": 2}, "dp=4 times tp=2 is 8, not the 4 GPUs; use dp=2 or tp=1"),
        ({"cp": 2}, "cp=2: context parallelism is not available yet"),
        ({"ep": 4}, "ep=4: expert parallelism is not available yet"),
        ({"recompute": 3}, "recompute=3: the model has 2 repeated blocks; use none, full or a"),
        ({"zero": 4}, "zero=4 is not a ZeRO stage; zero can be 0, 1, 2, 3"),
        ({"tp": 0}, "tp=0 is not a positive number"),
        ({"dp": 4, "batch": 10}, "global batch 10 is not divisible by dp=4"),
        ({"dp": 4, "batch": 10}, "use a global batch of 8 or 12"),
        ({"dp": 4, "batch": 3}, "use a global batch of 4"),
        ({"dp": 2, "microbatch": 3}, "microbatch=3 does not divide the 4 samples of each"),
        ({"dp": 2, "microbatch": 3}, "microbatch can be 1, 2, 4"),
        ({"dp": 4, "mixing": ("bn: sums",)}, "because of bn: sums; dp=4 would split it"),
        ({"microbatch": 2, "mixing": ("bn: sums",)}, "microbatch=2 splits the batch"),
    ],
)  # fmt: skip
def test_what_cannot_hold_is_refused_with_what_would(asked: dict, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        candidates(**asked)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
