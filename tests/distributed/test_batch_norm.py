"""Training with BatchNorm on processes: losses, weights and running statistics of one device."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from autoplan.runtime.module import ParallelModule
from autoplan.runtime.parallelize import parallelize
from autoplan.runtime.reference_dropout import reference_dropout
from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph
from tests.distributed.greedy import greedy_regions
from tests.distributed.harness import run_ranks
from tests.distributed.parity import assert_parity, full
from tests.distributed.plans import make_plan
from tests.parity.normed import MODELS, batch_of, model_of

ROWS, SEED, STEPS = 8, 11, 4
PLANS: dict[str, dict[str, Any]] = {
    "tp": {"tp": 2},
    "dp, ZeRO 0": {"dp": 2},
    "dp, ZeRO 3, recomputed": {"dp": 2, "zero": 3, "recompute": True},
    "dp x tp": {"dp": 2, "tp": 2, "zero": 1},
    "dp x tp, by operator": {"dp": 2, "tp": 2, "zero": 1, "again": True},
}


@cache
def graph_of(name: str) -> OpGraph:
    torch.manual_seed(0)
    return capture(model_of(name), batch_of(2))


@cache
def batches() -> list[dict[str, Tensor]]:
    torch.manual_seed(1)
    return [batch_of(ROWS) for _ in range(STEPS)]


def parallel(name: str, key: str) -> ParallelModule:
    options = dict(PLANS[key])
    blocks = graph_of(name).blocks if options.pop("recompute", False) else ()
    recomputed = frozenset(block.path for block in blocks)
    again, graph = options.pop("again", False), graph_of(name).at_batch(ROWS)
    regions = greedy_regions(graph, options.get("tp", 1), recomputed)
    plan = make_plan(
        graph.fingerprint,
        global_batch=ROWS,
        regions=tuple(
            replace(region, recomputed_operators=tuple(region.operators) * again)
            if region.kind
            else region
            for region in regions
        ),
        **options,
    )
    return parallelize(model_of(name), graph_of(name), plan, seed=SEED)


def train(pm: ParallelModule, steps: range) -> list[float]:
    optimizer = torch.optim.AdamW(pm.parameters(), lr=1e-2, eps=1e-4)
    losses = []
    for step in steps:
        optimizer.zero_grad()
        losses.append(pm.train_step(pm.shard_batch(batches()[step])).item())
        optimizer.step()
    return losses


def train_alone(name: str) -> tuple[list[float], dict[str, Tensor]]:
    model = model_of(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
    losses = []
    for step, batch in enumerate(batches()):
        optimizer.zero_grad()
        with reference_dropout(seed=SEED, step=step):
            loss = model(**batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, copy.deepcopy(model.state_dict())


def run_plans(rank: int, name: str, keys: list[str]) -> dict[str, Any]:
    found = {}
    for key in keys:
        pm = parallel(name, key)
        losses = train(pm, range(STEPS))
        found[key] = losses, {name: full(value) for name, value in pm.state_dict().items()}
    return found


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_training(name, ranks):
    losses, state = train_alone(name)
    assert any("running_var" in key for key in state)
    keys = [k for k, o in PLANS.items() if o.get("dp", 1) * o.get("tp", 1) == ranks]
    for found in run_ranks(run_plans, ranks, name, keys, deadline_s=280):
        for key in keys:
            assert found[key][0] == pytest.approx(losses, rel=1e-9), key
            assert_parity(found[key][1], state, torch.float64)


def run_relay(rank: int, folder: str) -> dict[str, Tensor]:
    """Two steps under one plan, then what a checkpoint brings under another."""
    pm = parallel("mlp", "dp, ZeRO 3, recomputed")
    train(pm, range(2))
    pm.save(Path(folder))
    expected = {name: full(value) for name, value in pm.state_dict().items()}
    other = parallel("mlp", "tp")
    other.load(Path(folder))
    assert_parity({n: full(v) for n, v in other.state_dict().items()}, expected, torch.float64)
    return expected


def test_running_statistics_are_in_checkpoints(tmp_path):
    fresh = model_of("mlp").state_dict()
    for state in run_ranks(run_relay, 2, str(tmp_path), deadline_s=280):
        assert state["last.norm.num_batches_tracked"] == 2
        assert not torch.equal(state["layers.1.norm.running_mean"],
                               fresh["layers.1.norm.running_mean"])  # fmt: skip
