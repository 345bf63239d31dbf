"""Training in which single operators run again in the backward is the same training.

Every block has operators of its own that do. Compared are losses, gradients, norms and weights of
three steps with one device, and gradients, to the bit, with the plan in which nothing runs again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
import torch

from autoplan.plan import Plan
from autoplan.runtime.parallelize import parallelize
from cost_models.schedules import ScheduleName
from tests.distributed.cases import (
    Case,
    graph_of,
    greedy_plan,
    lowest_dtype,
    make_batches,
    make_model,
)
from tests.distributed.harness import run_ranks
from tests.distributed.parity import full
from tests.distributed.pipelines import Cell, compare, pipeline_plan
from tests.parity.again import regions_again

FOUR = (0, 1, 2, 3)
F64, BF16 = torch.float64, torch.bfloat16


def planned(way: Case | Cell, seed: int | None) -> Plan:
    """The plan of a way to train; with a seed, random operators run again."""
    graph = graph_of(way.model, way.dtype)
    precision = "bf16" if way.dtype == BF16 else "fp32"
    if isinstance(way, Cell):
        plan = pipeline_plan(graph, way)
    else:
        plan = greedy_plan(graph, way, precision)
    if seed is None:
        return plan
    return replace(plan, regions=regions_again(graph, plan.regions, random.Random(seed)))


def run_ways(rank: int, ways: Sequence[Case | Cell]) -> None:
    for seed, way in enumerate(ways):
        stored = torch.float32 if way.dtype == BF16 else way.dtype
        gradients = []
        for again in (seed, None):
            graph = graph_of(way.model, way.dtype)
            pm = parallelize(make_model(way.model, stored), graph, planned(way, again))
            batches = make_batches(way.model, stored)
            pm.train_step(pm.shard_batch(batches[0]))
            gradients.append({name: full(p.grad) for name, p in pm.named_parameters()})
            if again is not None and way.dtype != BF16:
                for parameter in pm.parameters():
                    parameter.grad = None
                compare(pm, make_model(way.model, stored), batches, "adamw", lowest_dtype(graph))
        ours, plain = gradients
        assert all(torch.equal(ours[name], value) for name, value in plain.items()), way


def check(ways: Sequence[Case | Cell]) -> None:
    for way in ways:
        graph_of(way.model, way.dtype)
    run_ranks(run_ways, ways[0].world_size, ways, deadline_s=280)


def test_two_ranks():
    check(
        [
            Case("gpt", (2, 1), 3, False, F64, 1, "adamw"),
            Case("llama", (1, 2), 0, False, F64, 2, "adamw"),
            Cell(model="gpt", schedule="1f1b"),
            Cell(model="gpt2", firsts=FOUR, schedule="interleaved_1f1b"),
        ]
    )


def test_four_ranks():
    check(
        [
            *(Case("gpt tied", (2, 2), zero, False, F64, 2, "adamw") for zero in range(4)),
            Case("gpt", (2, 2), 2, False, BF16, 2, "adamw"),
            Case("gpt", (2, 2), 0, False, BF16, 2, "adamw"),
            Cell(model="gpt tied", schedule="1f1b", dp=2, zero=3),
            Cell(model="llama", firsts=FOUR, schedule="interleaved_1f1b", tp=2),
            Cell(model="gpt", schedule="gpipe", tp=2, dtype=BF16),
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt tied", "gpt2", "llama"])
def test_every_combination(model):
    check(
        [
            *(
                Case(model, (2, 2), zero, False, dtype, count, "adamw")
                for zero, count, dtype in product(range(4), (1, 2), (F64, BF16))
            ),
            *(
                Cell(model=model, firsts=firsts, schedule=schedule, dp=dp, tp=tp, zero=zero)
                for (schedule, firsts), (dp, tp, zero) in product(_SCHEDULES, _MESHES)
            ),
        ]
    )


_SCHEDULES: tuple[tuple[ScheduleName, tuple[int, ...]], ...] = (
    ("gpipe", (0, 2)), ("1f1b", (0, 2)), ("interleaved_1f1b", FOUR),
)  # fmt: skip
_MESHES = ((2, 1, 0), (2, 1, 1), (2, 1, 3), (1, 2, 0))
