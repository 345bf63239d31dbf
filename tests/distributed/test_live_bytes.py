"""What lives in a step of one of many ranks, counted on tensors without values, is the estimate."""

from __future__ import annotations

import pytest

import autoplan
from autoplan.trace.capture import capture
from autoplan.trace.precision import COMPUTE_DTYPES
from benchmarks.live_bytes.compare import compared
from benchmarks.live_bytes.plans import CASES, traced
from tests.parity.models import GPT, language_batch

WIDTH = 512


@pytest.mark.parametrize(
    ("pins", "ranks"),
    [
        ({"pp": 2, "dp": 8, "tp": 2, "zero": 1, "schedule": "1f1b", "recompute": "full"}, (1, 31)),
        ({"pp": 2, "dp": 8, "tp": 2, "zero": 0, "schedule": "1f1b", "recompute": "none"}, (1,)),
        ({"pp": 1, "dp": 16, "tp": 2, "zero": 3, "recompute": "none"}, (9,)),
    ],
)
def test_ranks_of_a_small_world(pins, ranks):
    model, batch = GPT(layers=4, width=WIDTH, heads=8), language_batch(2)
    plan = autoplan.plan(
        model.to("meta"), batch, cluster="dgx-h100", nodes=4, global_batch=pins["dp"] * 2,
        pins={**pins, "microbatch": 1},
    )  # fmt: skip
    graph = capture(
        model, batch, dtype=COMPUTE_DTYPES[plan.job.precision], global_batch=plan.job.global_batch
    )
    for found in compared(plan, model, graph, ranks):
        assert found.ratio == pytest.approx(1.0, abs=0.05)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CASES)
def test_three_of_1024_ranks(name):
    plan = CASES[name].plan()
    assert plan.mesh.world_size == 1024
    for found in compared(plan, *traced(plan), CASES[name].ranks):
        assert found.ratio == pytest.approx(1.0, abs=0.05)
