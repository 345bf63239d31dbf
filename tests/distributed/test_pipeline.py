"""Training in a pipeline is training on one device, whatever the schedule and the cuts.

Every case clips by norm, which counts tied weights once, and compares losses, gradients, the norm
and the weights after three steps.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch

from tests.distributed.cases import MODELS, graph_of, make_batches, make_model
from tests.distributed.harness import run_ranks
from tests.distributed.parity import full
from tests.distributed.pipelines import Cell, check, parallel
from tests.distributed.test_parity import first_gradients

FOUR = (0, 1, 2, 3)
LOOPED = ("interleaved_1f1b", "zbv")
SPLIT = ("zero_bubble", "zbv")
SCHEDULES = ("gpipe", "1f1b", "interleaved_1f1b", "zero_bubble", "zbv")


def test_two_ranks():
    check(
        [
            Cell(model="gpt", schedule="gpipe"),
            Cell(model="gpt tied", firsts=(0, 3), num_microbatches=8),
            Cell(model="llama", firsts=(0, 1), num_microbatches=1, recompute=True),
            Cell(model="gpt2", firsts=FOUR, schedule="interleaved_1f1b", optimizer="sgd"),
            Cell(model="gpt tied", firsts=FOUR, schedule="zbv"),
            Cell(model="gpt", schedule="zero_bubble"),
        ]
    )


def test_four_ranks():
    check(
        [
            Cell(model="gpt", dp=2, num_microbatches=2, dtype=torch.float32),
            Cell(model="gpt tied", dp=2, zero=1, num_microbatches=1),
            Cell(model="gpt tied", dp=2, zero=3, outermost="dp"),
            Cell(model="gpt tied", tp=2, recompute=True, outermost="dp"),
            Cell(model="gpt", firsts=FOUR, schedule="interleaved_1f1b", dp=2, zero=2),
            Cell(model="gpt tied", firsts=FOUR, schedule="zbv", dp=2, zero=1),
            Cell(model="gpt tied", tp=2, schedule="zero_bubble"),
            Cell(model="gpt2", firsts=FOUR, pp=4, num_microbatches=8),
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("model", [name for name in MODELS if name != "mlp"])
def test_every_combination(model, schedule):
    check(
        [
            Cell(
                model=model, schedule=schedule, zero=zero, recompute=recompute, optimizer="sgd",
                firsts=FOUR if schedule in LOOPED else (0, 2), dp=dp, tp=tp,
            )
            for zero, recompute, (dp, tp) in product([0, 1], [False, True], [(2, 1), (1, 2)])
            if not (recompute and schedule in SPLIT) and not (zero and dp == 1)
        ]
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_eight_ranks(schedule):
    firsts = FOUR if schedule in LOOPED else (0, 2)
    check(
        [
            Cell(
                model=model, schedule=schedule, firsts=firsts, dp=2, tp=2, zero=zero,
                num_microbatches=2, outermost=outermost,
            )
            for model, zero, outermost in (("gpt tied", 1, "pp"), ("llama", 0, "dp"))
        ]
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("outermost", ["pp", "dp"])
def test_replicas_in_a_pipeline(outermost):
    check(
        [
            Cell(
                model="gpt tied", schedule=schedule, firsts=FOUR, dp=4, zero=1, replicas=2,
                num_microbatches=2, outermost=outermost,
            )
            for schedule in ("interleaved_1f1b", "zbv")
        ]
    )  # fmt: skip


def low_precision(rank: int, cells: list[Cell]) -> list[tuple[float, float]]:
    """Gradient errors of bf16, of this rank's stages and on one device, against float32."""
    found = []
    for cell in cells:
        batch = make_batches(cell.model, torch.float32)[0]
        pm = parallel(cell)
        pm.train_step(pm.shard_batch(batch))
        ours = {name: full(p.grad) for name, p in pm.named_parameters()}
        one = first_gradients(make_model(cell.model, torch.float32).to(torch.bfloat16), batch)
        true = first_gradients(make_model(cell.model, torch.float32), batch)
        found.append(
            tuple(
                sum((got[name] - true[name]).norm() ** 2 for name in ours).sqrt().item()
                for got in (ours, one)
            )
        )
    return found


def test_bf16_errs_no_more_than_bf16_on_one_device():
    low = {"model": "gpt tied", "dtype": torch.bfloat16}
    cells = [
        Cell(**low, dp=2, zero=1),
        Cell(**low, dp=2, zero=1, firsts=FOUR, schedule="zbv"),
        Cell(**low, tp=2, schedule="zero_bubble"),
        Cell(**low, tp=2, recompute=True),
    ]
    graph_of("gpt tied", torch.bfloat16)
    for errors in run_ranks(low_precision, 4, cells):
        for parallel_error, alone in errors:
            assert 0 < parallel_error < 2 * alone
