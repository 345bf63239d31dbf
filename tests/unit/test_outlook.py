"""Other sizes of a plan's training: each is the plan that is made of it alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan import api, other_sizes
from autoplan.errors import InfeasibleError, PlanError
from autoplan.job import ModelSource
from autoplan.plan import Plan
from tests.unit.sample_plan import PLAN

MODEL = "tests.unit.test_outlook:small"
REQUEST = {"cluster": "dgx-h100", "gpus_per_node": 2, "precision": "fp32"}


def small():
    """A model of two layers that takes samples of any length."""
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    return model, (torch.randn(4, 64), torch.randn(4, 64)), nn.functional.mse_loss


@pytest.fixture(scope="module")
def plan() -> Plan:
    return api.plan(MODEL, nodes=2, global_batch=512, **REQUEST)


@pytest.mark.parametrize("grows", [False, True])
def test_points_are_plans_of_their_own(plan: Plan, grows: bool) -> None:
    found = other_sizes.outlook(plan, nodes=(1, 2, 4), grow_batch=grows)
    assert replace(found, outlook=None) == plan
    assert found.outlook is not None
    points = found.outlook.scaling
    assert [point.nodes for point in points] == [1, 2, 4]
    assert [point.devices for point in points] == [2, 4, 8]
    assert [point.global_batch for point in points] == [256, 512, 1024] if grows else [512] * 3
    for point in points:
        alone = api.plan(MODEL, nodes=point.nodes, global_batch=point.global_batch, **REQUEST)
        assert point.samples_per_s == alone.estimate.samples_per_s
        assert point.step_s == alone.estimate.step_s
    assert found.outlook.largest_microbatch is None


def test_limits_fit_and_the_next_size_does_not() -> None:
    tight = api.plan(MODEL, nodes=1, global_batch=64, memory_limit="2.135GiB", **REQUEST)
    outlook = other_sizes.outlook(tight, limits=True).outlook
    assert outlook is not None
    limit = outlook.largest_microbatch
    assert limit is not None
    assert limit.peak_memory_bytes <= tight.estimate.memory_limit_bytes
    assert limit.does_not_fit == limit.value + 1
    mesh = {"pp": tight.mesh.pp, "dp": tight.mesh.dp, "tp": tight.mesh.tp}

    def planned(microbatch: int) -> Plan:
        pins = {**mesh, "microbatch": microbatch}
        batch = microbatch * tight.mesh.dp
        given = {"nodes": 1, "global_batch": batch, "memory_limit": "2.135GiB", "pins": pins}
        return api.plan(MODEL, **given, **REQUEST)

    assert planned(limit.value).microbatch == limit.value
    with pytest.raises(InfeasibleError):
        planned(limit.value + 1)
    assert outlook.longest_sequence is None


def test_a_point_without_a_plan_says_why(plan: Plan) -> None:
    odd = api.plan(MODEL, nodes=1, global_batch=2, pins={"tp": 1}, **REQUEST)
    outlook = other_sizes.outlook(odd, nodes=(1, 4)).outlook
    assert outlook is not None
    last = outlook.scaling[-1]
    assert last.samples_per_s is None
    assert last.reason
    assert outlook.scaling_of(last) is None


def test_what_has_no_name_or_no_such_nodes_is_refused(plan: Plan) -> None:
    unnamed = replace(PLAN, job=replace(PLAN.job, model=ModelSource(kind="object", name="Net")))
    with pytest.raises(PlanError, match="Net was made in Python"):
        other_sizes.outlook(unnamed, nodes=(1,))
    with pytest.raises(PlanError, match="100000 nodes"):
        other_sizes.outlook(plan, nodes=(1, 100000))
