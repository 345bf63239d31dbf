"""Trains tiny twins of families of the zoo on four gloo ranks and on one device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from autoplan.plan import Plan
from autoplan.runtime.parallelize import parallelize
from autoplan.trace.graph import OpGraph
from tests.distributed.cases import GLOBAL_BATCH, STEPS, lowest_dtype
from tests.distributed.greedy import greedy_regions
from tests.distributed.harness import run_ranks
from tests.distributed.plans import make_plan
from tests.distributed.training import (
    Batches,
    check_equal,
    make_optimizer,
    train_alone,
    train_parallel,
)
from tests.families import random_batch, real, tiny, traced

Given = tuple[str, int, int, int, int]
"""Family, dp, tp, ZeRO stage, microbatches."""


def check_families(given: Sequence[Given]) -> None:
    """Three steps of each; families share their processes."""
    plans = []
    for name, *degrees in given:
        graph = traced(name)
        plans.append((name, graph, _plan(graph, *degrees)))
    run_ranks(train_families, 4, plans, deadline_s=280)


def _plan(graph: OpGraph, dp: int, tp: int, zero: int, num_microbatches: int) -> Plan:
    return make_plan(
        graph.fingerprint, global_batch=GLOBAL_BATCH, dp=dp, tp=tp, zero=zero,
        num_microbatches=num_microbatches, regions=greedy_regions(graph, tp, frozenset()),
    )  # fmt: skip


def train_families(rank: int, plans: Sequence[tuple[str, OpGraph, Plan]]) -> None:
    """Trains twins by plans, one after the other, and compares each with one device."""
    for name, graph, plan in plans:
        torch.manual_seed(1)
        batches = [random_batch(tiny(name), GLOBAL_BATCH, torch.float64) for _ in range(STEPS)]
        train(real(name), batches, graph, plan)


def train(model: nn.Module, batches: Batches, graph: OpGraph, plan: Plan) -> None:
    """Trains a model by a plan and on one device, and compares the two."""
    pm = parallelize(model, graph, plan)
    got = train_parallel(pm, batches, make_optimizer("adamw", pm.parameters()))
    expected = train_alone(model, batches, make_optimizer("adamw", model.parameters()))
    check_equal(got, expected, lowest_dtype(graph))
