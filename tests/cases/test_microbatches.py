"""Batches that cannot be cut evenly, and pipelines with too few microbatches, end at planning."""

from __future__ import annotations

import pytest

import autoplan
from tests.parity.models import GPT, language_batch


def planned(ranks: int, batch: int, **pins: int) -> autoplan.Plan:
    job = {"cluster": "cpu-gloo", "gpus_per_node": ranks, "precision": "fp32"}
    example = {name: value[:2] for name, value in language_batch(2).items()}
    return autoplan.plan(GPT(layers=4), example, **job, global_batch=batch, pins=pins)


def test_a_microbatch_that_leaves_a_rest_is_refused() -> None:
    with pytest.raises(autoplan.PlanError, match=r"microbatch=3 does not divide.*1, 2, 4, 8"):
        planned(1, 8, microbatch=3)


@pytest.mark.parametrize(("batch", "pins"), [(3, {"pp": 4}), (8, {"pp": 4, "microbatch": 4})])
def test_fewer_microbatches_than_ranks_of_a_pipeline_are_refused(batch: int, pins: dict) -> None:
    with pytest.raises(autoplan.PlanError, match=r"pp at most \d with as many microbatches"):
        planned(4, batch, **pins)


def test_a_pipeline_has_microbatches_for_all_its_ranks() -> None:
    plan = planned(4, 8, pp=4)
    assert plan.num_microbatches >= 4
    assert plan.mesh.dp * plan.microbatch * plan.num_microbatches == 8
