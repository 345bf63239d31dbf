"""Plans of models with BatchNorm: a rank's part of the batch is one microbatch, over any dp."""

from __future__ import annotations

import pytest

import autoplan
from autoplan.errors import PlanError
from tests.parity.normed import batch_of, model_of

OPTIONS = {"cluster": "cpu-gloo", "gpus_per_node": 4, "global_batch": 16, "precision": "fp32"}


def planned(**pins) -> autoplan.Plan:
    return autoplan.plan(model_of("mlp"), batch_of(2), pins=pins, **OPTIONS)


@pytest.mark.parametrize("pins", [{}, {"dp": 4}, {"dp": 2, "zero": 3}, {"replicas": 2, "dp": 4}])
def test_one_microbatch(pins):
    plan = planned(**pins)
    assert plan.num_microbatches == 1
    assert plan.microbatch == 16 // plan.mesh.dp
    assert plan.warnings == ()


def test_microbatches_and_pipelines_are_refused():
    for pins in ({"microbatch": 1}, {"pp": 2}, {"replicas": 2, "microbatch": 1}):
        with pytest.raises(PlanError, match=r"^no mesh .*norm/batch_norm takes statistics[^\n]*$"):
            planned(**pins)
