"""Tiny twins of families of the zoo, trained on four gloo ranks and on one device."""

from __future__ import annotations

import pytest
import torch

from autoplan.plan import Plan
from autoplan.runtime.parallelize import parallelize
from autoplan.trace.graph import OpGraph
from tests.distributed.cases import GLOBAL_BATCH, STEPS, lowest_dtype
from tests.distributed.greedy import greedy_regions
from tests.distributed.harness import run_ranks
from tests.distributed.plans import make_plan
from tests.distributed.training import check_equal, make_optimizer, train_alone, train_parallel
from tests.families import random_batch, real, tiny, traced

PLANS = (
    ("opt-350m", 2, 2, 1, 1),
    ("falcon-40b", 2, 2, 3, 2),
    ("gemma2-9b", 1, 4, 0, 2),
    ("mixtral-8x7b", 2, 2, 3, 2),
    ("deepseek-v3", 2, 2, 1, 1),
    ("bert-base", 2, 2, 2, 2),
    ("vit-b16", 4, 1, 3, 1),
    ("t5-small", 2, 2, 1, 2),
    ("bart-base", 1, 4, 0, 1),
)
"""Family, dp, tp, ZeRO stage, microbatches."""

OTHER_PLANS = (
    ("whisper-small", 2, 2, 1, 2),
    ("resnet50", 2, 2, 2, 1),
    ("convnext-tiny", 1, 4, 0, 2),
    ("swin-tiny", 2, 2, 3, 1),
    ("mamba2-130m", 2, 2, 1, 1),
    ("switch-base-8", 1, 4, 0, 2),
    ("pangu-200b", 2, 2, 3, 2),
    ("dlrm-24b", 1, 4, 0, 1),
    ("mmoe", 2, 2, 1, 1),
)
"""Of models that convolve, scan, route or look up; the same."""


def _plan(graph: OpGraph, dp: int, tp: int, zero: int, num_microbatches: int) -> Plan:
    return make_plan(
        graph.fingerprint, global_batch=GLOBAL_BATCH, dp=dp, tp=tp, zero=zero,
        num_microbatches=num_microbatches, regions=greedy_regions(graph, tp, frozenset()),
    )  # fmt: skip


def _train(rank: int, plans: dict[str, tuple[OpGraph, Plan]]) -> None:
    for name, (graph, plan) in plans.items():
        torch.manual_seed(1)
        batches = [random_batch(tiny(name), GLOBAL_BATCH, torch.float64) for _ in range(STEPS)]
        model = real(name)
        pm = parallelize(model, graph, plan)
        got = train_parallel(pm, batches, make_optimizer("adamw", pm.parameters()))
        expected = train_alone(model, batches, make_optimizer("adamw", model.parameters()))
        check_equal(got, expected, lowest_dtype(graph))


@pytest.mark.parametrize("given", [PLANS, OTHER_PLANS], ids=["attend", "others"])
def test_families_train_alike(given):
    plans = {}
    for name, *degrees in given:
        graph = traced(name)
        plans[name] = graph, _plan(graph, *degrees)
    run_ranks(_train, 4, plans, deadline_s=280)
