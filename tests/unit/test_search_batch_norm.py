"""Plans of models with BatchNorm: a rank's part of the batch is one microbatch, over any dp."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

import autoplan
from autoplan import plan_io
from autoplan.errors import PlanError
from autoplan.report.text import print_report
from tests.parity.normed import batch_of, model_of

OPTIONS = {"cluster": "cpu-gloo", "gpus_per_node": 4, "global_batch": 16, "precision": "fp32"}


def planned(*, batch_norm: Any = "sync", **pins) -> autoplan.Plan:
    return autoplan.plan(model_of("mlp"), batch_of(2), batch_norm=batch_norm, pins=pins, **OPTIONS)


def local(**pins) -> autoplan.Plan:
    return planned(batch_norm="local", **pins)


def shown(plan: autoplan.Plan) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    print_report(plan, console=console)
    return console.export_text()


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


@pytest.mark.parametrize("pins", [{"dp": 2, "microbatch": 2}, {"pp": 2}])
def test_local_statistics_allow_microbatches_and_pipelines(pins: dict[str, int]):
    plan = local(**pins)
    assert plan.warnings == ()
    assert plan.num_microbatches > 1
    assert plan_io.from_json(plan_io.to_json(plan)) == plan
    assert "each rank's and microbatch's own rows" in shown(plan)
    assert "each rank's and microbatch's own rows" not in shown(planned())


def test_microbatches_of_single_values_are_not_planned():
    assert local(pp=1, dp=4).microbatch > 1
    with pytest.raises(PlanError, match="a single value of each channel"):
        local(microbatch=1)
    with pytest.raises(PlanError, match="unknown batch_norm 'global'"):
        planned(batch_norm="global")
