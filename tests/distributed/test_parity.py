"""Training real models in parallel is training them on one device, whatever the plan.

The full matrix of models, meshes, ZeRO stages, recompute, precisions and microbatches is marked
``slow``; the rest runs a subset in which every pair of values of two columns occurs.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import combinations, product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autoplan.job import Job, ModelSource, Pins
from autoplan.plan import MeshPlan, Plan
from autoplan.runtime.parallelize import parallelize
from autoplan.search.planner import plan_job
from autoplan.trace.graph import OpGraph
from hardware_profiles.load import load
from tests.distributed.cases import (
    GLOBAL_BATCH,
    MODELS,
    Case,
    graph_of,
    greedy_plan,
    lowest_dtype,
    make_batches,
    make_model,
)
from tests.distributed.harness import run_ranks
from tests.distributed.parity import full
from tests.distributed.training import check_equal, make_optimizer, train_alone, train_parallel

CASES_PER_GROUP = 8

COLUMNS: dict[str, Sequence[Any]] = {
    "model": list(MODELS),
    "mesh": [(1, 2), (2, 1), (2, 2)],
    "zero": [0, 1, 2, 3],
    "recompute": [False, True],
    "dtype": [torch.float64, torch.float32],
    "num_microbatches": [1, 2],
    "optimizer": ["adamw", "sgd"],
}
ALL = [Case(*values) for values in product(*COLUMNS.values())]


def _pairs(case: Case) -> set[tuple[Any, ...]]:
    values = [(field.name, getattr(case, field.name)) for field in fields(case)]
    return set(combinations(values, 2))


def pairwise(cases: Sequence[Case]) -> list[Case]:
    """A small subset in which every pair of values that occurs in ``cases`` occurs."""
    left = {case: _pairs(case) for case in cases}
    open_pairs = set().union(*left.values())
    chosen = []
    while open_pairs:
        best = max(cases, key=lambda case: len(left[case] & open_pairs))
        chosen.append(best)
        open_pairs -= left[best]
    return chosen


def groups(cases: Sequence[Case]) -> list[tuple[Case, ...]]:
    """Cells of one world size, in groups that share their processes."""
    found = []
    for world_size in (2, 4):
        own = [case for case in cases if case.world_size == world_size]
        found += [tuple(own[i : i + CASES_PER_GROUP]) for i in range(0, len(own), CASES_PER_GROUP)]
    return found


def searched_plan(graph: OpGraph, case: Case) -> Plan:
    """The planner's own, for devices so slow that splitting the work of a small model pays."""
    dp, tp = case.mesh
    cluster = load("cpu-gloo")
    job = Job(
        model=ModelSource(kind="object", name=case.model),
        cluster=cluster.name,
        nodes=1,
        gpus_per_node=dp * tp,
        global_batch=GLOBAL_BATCH,
        precision="fp32",
        pins=Pins(
            dp=dp,
            tp=tp,
            zero=case.zero,
            microbatch=GLOBAL_BATCH // (dp * case.num_microbatches),
            recompute="full" if case.recompute else "none",
        ),
    )
    device = replace(cluster.device, peak_flops={"float32": 1e6, "float64": 1e6})
    plan = plan_job(graph, job, replace(cluster, device=device))
    assert plan.mesh == MeshPlan(dp=dp, tp=tp)
    assert (plan.zero, plan.num_microbatches) == (case.zero, case.num_microbatches)
    return plan


def run_case(case: Case, plan: Plan) -> None:
    graph = graph_of(case.model, case.dtype)
    batches = make_batches(case.model, case.dtype)
    model = make_model(case.model, case.dtype)
    pm = parallelize(model, graph, plan)
    got = train_parallel(pm, batches, make_optimizer(case.optimizer, pm.parameters()))
    expected = train_alone(model, batches, make_optimizer(case.optimizer, model.parameters()))
    check_equal(got, expected, lowest_dtype(graph))


def run_cases(rank: int, plans: Mapping[Case, Plan]) -> dict[Case, str]:
    """What went wrong, by case."""
    wrong = {}
    for case, plan in plans.items():
        try:
            run_case(case, plan)
        except Exception:
            wrong[case] = traceback.format_exc()
    return wrong


def run_group(cases: Sequence[Case], make: Callable[[OpGraph, Case], Plan]) -> dict[Case, Plan]:
    plans = {case: make(graph_of(case.model, case.dtype), case) for case in cases}
    wrong = run_ranks(run_cases, cases[0].world_size, plans, deadline_s=280)[0]
    assert not wrong, "\n".join(f"{case}\n{why}" for case, why in wrong.items())
    return plans


def _label(cases: Sequence[Case]) -> str:
    return f"{cases[0].world_size} ranks"


@pytest.mark.parametrize("cases", groups(pairwise(ALL)), ids=_label)
def test_every_pair(cases):
    run_group(cases, greedy_plan)


SEARCHED = (
    Case("gpt tied", (2, 2), 3, False, torch.float64, 2, "adamw"),
    Case("llama", (2, 2), 0, True, torch.float32, 2, "adamw"),
    Case("gpt2", (2, 2), 1, False, torch.float64, 1, "sgd"),
    Case("mlp", (2, 2), 2, False, torch.float64, 2, "adamw"),
    Case("gpt", (1, 4), 0, True, torch.float32, 1, "adamw"),
)


def first_gradients(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    output = model(**batch)
    (output if isinstance(output, Tensor) else output.loss).backward()
    return {name: p.grad.float() for name, p in model.named_parameters()}


def low_precision(rank: int, plans: Mapping[Case, Plan]) -> list[tuple[float, float]]:
    """Gradient errors of bf16, in parallel and on one device, against float32 on one device."""
    found = []
    for case, plan in plans.items():
        batch = make_batches(case.model, torch.float32)[0]
        model = make_model(case.model, torch.float32)
        pm = parallelize(model, graph_of(case.model, torch.bfloat16), plan)
        pm.train_step(pm.shard_batch(batch))
        ours = {name: full(p.grad) for name, p in pm.named_parameters()}
        one = first_gradients(make_model(case.model, torch.float32).to(torch.bfloat16), batch)
        true = first_gradients(model, batch)
        found.append(
            tuple(
                sum((got[name] - grad).norm() ** 2 for name, grad in true.items()).sqrt().item()
                for got in (ours, one)
            )
        )
    return found


def test_bf16_errs_no_more_than_bf16_on_one_device():
    cases = [
        Case("gpt tied", (2, 2), 3, True, torch.bfloat16, 2, ""),
        Case("llama", (2, 2), 0, False, torch.bfloat16, 1, ""),
        Case("gpt2", (2, 2), 1, False, torch.bfloat16, 2, ""),
    ]
    plans = {
        case: greedy_plan(graph_of(case.model, case.dtype), case, precision="bf16")
        for case in cases
    }
    for errors in run_ranks(low_precision, 4, plans):
        for parallel, alone in errors:
            assert 0 < parallel < 2 * alone


def test_plans_of_the_planner():
    plans = run_group(SEARCHED, searched_plan)
    for case, plan in plans.items():
        operators = {label for region in plan.regions for label in region.operators.values()}
        assert operators - {"replicate"}, f"{case} splits nothing"
        recomputed = any(region.recomputed for region in plan.regions)
        assert recomputed == case.recompute, case


@pytest.mark.slow
@pytest.mark.parametrize("cases", groups(ALL), ids=_label)
def test_every_combination(cases):
    run_group(cases, greedy_plan)
