"""The same training with dropout on one device and on processes, under plans of every kind."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from autoplan.plan import Plan
from autoplan.runtime.parallelize import parallelize
from autoplan.runtime.reference_dropout import reference_dropout
from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph
from tests.distributed.greedy import greedy_regions
from tests.distributed.harness import run_ranks
from tests.distributed.parity import assert_parity, full
from tests.distributed.plans import make_plan
from tests.parity.dropping import batch_of, model_of
from tests.parity.stages import stages_at

ROWS, SEED, STEPS = 8, 11, 30
PLANS: dict[str, dict[str, Any]] = {
    "alone": {},
    "microbatches, recomputed": {"num_microbatches": 4, "recompute": True},
    "tp": {"tp": 2},
    "dp, ZeRO 0": {"dp": 2},
    "dp, ZeRO 3, recomputed": {"dp": 2, "zero": 3, "num_microbatches": 2, "recompute": True},
    "pp, 1F1B": {"pp": 2, "num_microbatches": 4, "schedule": "1f1b"},
    "pp, 1F1B, recomputed": {
        "pp": 2, "num_microbatches": 4, "schedule": "1f1b", "recompute": True
    },
    "dp x tp": {"dp": 2, "tp": 2, "zero": 1},
}  # fmt: skip


@cache
def graph_of(name: str) -> OpGraph:
    torch.manual_seed(0)
    return capture(model_of(name), batch_of(name, 2))


@cache
def batches(name: str) -> list[dict[str, Tensor]]:
    torch.manual_seed(1)
    return [batch_of(name, ROWS) for _ in range(4)]


def plan_of(name: str, options: Mapping[str, Any]) -> Plan:
    graph, given = graph_of(name), dict(options)
    blocks = graph.blocks if given.pop("recompute", False) else ()
    recomputed = frozenset(block.path for block in blocks)
    if "pp" in given:
        given["stages"] = stages_at(graph.at_batch(ROWS), [0, 2])
    return make_plan(
        graph.fingerprint,
        global_batch=ROWS,
        regions=greedy_regions(graph.at_batch(ROWS), given.get("tp", 1), recomputed),
        **given,
    )


def train(name: str, key: str, steps: range, folder: Path | None = None) -> Any:
    """Losses under a plan, and the gradients of this rank after the first step.

    Args:
        folder: a checkpoint, read first if there is one, and written at the end.
    """
    pm = parallelize(model_of(name), graph_of(name), plan_of(name, PLANS[key]), seed=SEED)
    optimizer = torch.optim.AdamW(pm.parameters(), lr=1e-3, eps=1e-4)
    if folder is not None and steps.start:
        pm.load(folder, optimizer=optimizer)
    losses, gradients = [], {}
    for step in steps:
        optimizer.zero_grad()
        batch = batches(name)[step % len(batches(name))]
        losses.append(pm.train_step(pm.shard_batch(batch)).item())
        gradients = gradients or {n: full(p.grad) for n, p in pm.named_parameters()}
        optimizer.step()
    if folder is not None:
        pm.save(folder, optimizer=optimizer)
    return losses, gradients


def train_alone(name: str, steps: int) -> Any:
    model = model_of(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4)
    losses, gradients = [], {}
    for step in range(steps):
        optimizer.zero_grad()
        with reference_dropout(seed=SEED, step=step):
            output = model(**batches(name)[step % len(batches(name))])
        loss = output if isinstance(output, Tensor) else output.loss
        loss.backward()
        if not gradients:
            gradients = {n: full(p.grad) for n, p in model.named_parameters()}
        optimizer.step()
        losses.append(loss.item())
    return losses, gradients


def ranks_of(key: str) -> int:
    return PLANS[key].get("pp", 1) * PLANS[key].get("dp", 1) * PLANS[key].get("tp", 1)


def run_plans(rank: int, name: str, keys: list[str], steps: int) -> dict[str, Any]:
    return {key: train(name, key, range(steps)) for key in keys}


def compare(name: str, keys: list[str], steps: int) -> None:
    """Plans of one number of ranks, on processes that they share."""
    losses, gradients = train_alone(name, steps)
    for found in run_ranks(run_plans, ranks_of(keys[0]), name, keys, steps, deadline_s=280):
        for key in keys:
            assert found[key][0] == pytest.approx(losses, rel=1e-9), key
            own = found[key][1]
            assert own
            assert_parity(own, {n: gradients[n] for n in own}, torch.float64)


def test_a_long_curve_is_that_of_one_device_under_every_plan():
    compare("gpt", ["tp", "dp, ZeRO 0", "dp, ZeRO 3, recomputed", "pp, 1F1B, recomputed"], STEPS)


@pytest.mark.parametrize("name", ["bert", "mlp"])
def test_a_few_steps_of_other_models(name):
    keys = [key for key in PLANS if ranks_of(key) == 2]
    compare(name, keys, 2)


def test_two_axes():
    compare("gpt", ["dp x tp"], 2)


def test_one_process():
    compare("gpt", ["alone", "microbatches, recomputed"], 2)


def run_relay(rank: int, keys: list[str], folder: str) -> list[list[float]]:
    """The same training, carried on under one plan after another."""
    return [
        train("gpt", key, range(5 * index, 5 * index + 5), Path(folder))[0]
        for index, key in enumerate(keys)
    ]


def test_a_checkpoint_goes_on_with_the_same_draws_under_another_plan(tmp_path):
    expected, _ = train_alone("gpt", 15)
    keys = ["tp", "pp, 1F1B", "dp, ZeRO 3, recomputed"]
    for found in run_ranks(run_relay, 2, keys, str(tmp_path), deadline_s=280):
        losses = [loss for part in found for loss in part]
        assert losses == pytest.approx(expected, rel=1e-9)
