"""What plans tell of modules and of how blocks run adds up to what was priced."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from autoplan.job import Pins
from autoplan.plan import Plan
from autoplan.plan_details import BlockFlow, Outlook, ScalingPoint, TensorRead
from autoplan.search.pipeline.solve import Found
from autoplan.search.pipeline.stored import found_of
from autoplan.search.planner import plan_priced
from autoplan.search.pricing import Pricing
from tests.unit.test_joint_plans import CASES, CLUSTER, free_job, graph_of, planned

MODELS = sorted({case[0] for case in CASES})
STATES = ("parameters", "gradients", "optimizer_state", "gathered_parameters")
PLANS = [
    ("gpt2", {"pp": 2, "tp": 2}),
    ("two kinds", {"tp": 2, "recompute": "full", "zero": 3}),
    ("gated", {"pp": 2, "schedule": "interleaved_1f1b", "stages_per_rank": 2}),
    ("encoder and decoder", {"tp": 2}),
]


def found_with(name: str, pins: dict) -> tuple[Plan, Found]:
    asked = replace(free_job(4), planned_only=False, pins=Pins(**pins))
    pricing = Pricing(graph_of(name), asked, CLUSTER)
    plan = plan_priced(pricing, with_alternatives=False)
    return plan, found_of(pricing, plan)


@pytest.mark.parametrize(("name", "pins"), PLANS, ids=str)
def test_modules_add_up_to_the_fullest_rank(name: str, pins: dict) -> None:
    plan, found = found_with(name, pins)
    modules, memory = plan.estimate.modules, found.costs.memory
    full = max(plan.estimate.stages, key=lambda stage: stage.memory.total).memory
    for category in STATES:
        buffers = memory.buffer_bytes if category == "parameters" else 0
        of_modules = sum(getattr(each, category) for each in modules)
        held = getattr(full, category) - buffers
        if category == "gathered_parameters" and plan.zero == 3:
            assert of_modules == 0
        else:
            assert held - 1 <= of_modules <= held + len(modules)
    held = sum(each.activations for each in modules) + memory.input_bytes
    assert full.activations - 1 <= held
    tails = sum(load.tail.kept_bytes for load in found.value.loads if load.tail)
    assert held <= full.activations + tails + len(modules)
    assert [each.total for each in modules] == sorted((m.total for m in modules), reverse=True)
    copies = {each.copies for each in modules if each.kind}
    assert copies <= set(range(1, 1 + len(graph_of(name).blocks)))


@pytest.mark.parametrize("memory", [1.0, 0.8])
@pytest.mark.parametrize("name", MODELS)
def test_what_nodes_keep_is_what_columns_keep(name: str, memory: float) -> None:
    plan = planned(name, 4, memory, pp=1)
    found = found_of(Pricing(graph_of(name), plan.job, CLUSTER), plan)
    menus = found.family.menus
    for column, key in found.columns(0):
        assert sum(menus.kept(key, column).values()) == pytest.approx(column.kept_bytes, rel=1e-12)


def sent_in(flow: BlockFlow) -> Counter[str]:
    """Bytes by collective; a tensor is sent once for all that want it in one placement."""
    once, alone = Counter[TensorRead](), []
    for operator in flow.operators:
        once |= Counter(read for read in operator.reads if read.source is not None)
        alone += [read for read in operator.reads if read.source is None]
    found = Counter[str]()
    for read in (*once.elements(), *alone, *flow.outputs):
        for kind in filter(None, (read.forward, read.backward)):
            found[kind] += read.nbytes
    return found


@pytest.mark.parametrize("name", MODELS)
def test_messages_of_flows_are_those_that_were_priced(name: str) -> None:
    plan, found = found_with(name, {"tp": 2, "recompute": "none"})
    menus = found.family.menus
    columns = {key: column for column, key in found.columns(0)}
    assert plan.flows
    for flow in plan.flows:
        sent = menus.messages(flow.block, columns[flow.block])
        assert sent_in(flow) == {kind: each.nbytes for kind, each in sent.items()}


@pytest.mark.parametrize("name", MODELS)
def test_flows_tell_what_regions_decide(name: str) -> None:
    plan = planned(name, 4, 0.8, pp=1)
    regions = {region.blocks[0]: region for region in plan.regions if region.blocks}
    assert set(regions) == {flow.block for flow in plan.flows}
    for flow in plan.flows:
        region = regions[flow.block]
        again = {each.name for each in flow.operators if each.recomputed}
        assert set(region.operators) >= {each.name for each in flow.operators}
        if not region.recomputed:
            assert again <= set(region.recomputed_operators)
        assert flow.outputs


def test_scaling_is_speed_by_device() -> None:
    def point(nodes: int, samples_per_s: float | None) -> ScalingPoint:
        return ScalingPoint(
            nodes=nodes, devices=8 * nodes, global_batch=64, samples_per_s=samples_per_s,
            step_s=None,
        )  # fmt: skip

    points = (point(1, None), point(2, 100.0), point(8, 300.0), point(16, None))
    outlook = Outlook(scaling=points)
    assert [outlook.scaling_of(each) for each in points] == [None, 1.0, 0.75, None]
