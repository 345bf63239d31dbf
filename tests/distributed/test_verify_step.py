"""``pm.verify``: equal where the program is right; planted faults are found and named."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional

from autoplan.codegen import build
from autoplan.errors import PlanError
from autoplan.runtime import engines
from autoplan.runtime.buckets import Bucket
from autoplan.runtime.parallelize import parallelize
from autoplan.runtime.random import RandomState
from autoplan.runtime.weights import local
from autoplan.trace.capture import capture
from autoplan.verdict import Verification
from tests.distributed.cases import Case, graph_of, greedy_plan, make_batches, make_model
from tests.distributed.greedy import greedy_regions
from tests.distributed.harness import run_ranks
from tests.distributed.pipelines import Cell, pipeline_plan
from tests.distributed.plans import make_plan

Fault = Callable[[], AbstractContextManager]

TP = Case("gpt", (2, 2), 0, False, torch.float64, 2, "sgd")
ZERO_3 = Case("llama", (2, 2), 3, False, torch.float64, 1, "sgd")
PIPELINE = Cell(model="gpt tied", dp=2, zero=1)


def verified(rank: int, case: Case | Cell, fault: Fault = nullcontext) -> Verification:
    graph = graph_of(case.model, case.dtype)
    plan = greedy_plan(graph, case) if isinstance(case, Case) else pipeline_plan(graph, case)
    model, batch = make_model(case.model, case.dtype), make_batches(case.model, case.dtype)[0]
    with fault():
        pm = parallelize(model, graph, plan)
        before = {name: local(p).clone() for name, p in pm.named_parameters()}
        found = pm.verify(model, batch)
    for name, parameter in pm.named_parameters():
        assert torch.equal(before[name], local(parameter))
        assert parameter.grad is None
    return found


@pytest.mark.parametrize("case", [TP, ZERO_3, PIPELINE], ids=["tp", "zero 3", "pipeline"])
def test_a_right_program_is_equal(case: Case | Cell) -> None:
    graph = graph_of(case.model, case.dtype)
    count, buffers = (len(list(graph.of_kind(kind))) for kind in ("parameter", "buffer"))
    outcomes = run_ranks(verified, case.world_size, case)
    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert outcomes[0].ok, outcomes[0]
    kinds = [difference.kind for difference in outcomes[0].differences]
    weights = ["gradient"] * count
    steps = [*["sgd"] * count, *["adam"] * count]
    assert kinds == ["loss", *weights, "norm", *["buffer"] * buffers, *steps]


def _edited(pattern: str, replacement: str) -> AbstractContextManager:
    """The emitted program with its first match of a pattern replaced."""
    run = build._run

    def edited(source: str, *bound: object) -> object:
        found, count = re.subn(pattern, replacement, source, count=1)
        assert count == 1
        return run(found, *bound)

    return mock.patch.object(build, "_run", edited)


def _without_sums() -> AbstractContextManager:
    return mock.patch.object(Bucket, "start", return_value=None)


def _loss_twice() -> AbstractContextManager:
    term = engines.OneStage.term
    return mock.patch.object(
        engines.OneStage, "term", lambda *args, **kwargs: 2 * term(*args, **kwargs)
    )


def _averaged() -> AbstractContextManager:
    divide = FSDPModule.set_gradient_divide_factor
    return mock.patch.object(
        FSDPModule, "set_gradient_divide_factor", lambda unit, _: divide(unit, 2.0)
    )


BACKWARD = {"gradient", "norm", "sgd", "adam"}
FAULTS: tuple[tuple[Case | Cell, dict[str, tuple[Fault, set[str]]]], ...] = (
    (
        TP,
        {
            "a sum over tp dropped": (
                partial(_edited, r"all_reduce__identity\((\w+), tp\)", r"\1"),
                {"loss", *BACKWARD},
            ),
            "gradients not gathered over tp": (
                partial(_edited, r"slice__all_gather\((\w+), 2, tp\)", r"\1.chunk(2, 2)[tp.rank]"),
                BACKWARD,
            ),
            "gradients not summed over dp": (_without_sums, BACKWARD),
            "loss scaled": (_loss_twice, {"loss", "gradient", "norm"}),
        },
    ),
    (ZERO_3, {"gradients averaged": (_averaged, {"gradient", "norm"})}),
    (PIPELINE, {"tied weights not summed": (_without_sums, {"gradient", "sgd", "adam"})}),
)


@pytest.mark.parametrize(("case", "faults"), FAULTS, ids=["tp", "zero 3", "pipeline"])
def test_planted_faults_are_found(
    case: Case | Cell, faults: dict[str, tuple[Fault, set[str]]]
) -> None:
    graph_of(case.model, case.dtype)
    for name, found in run_ranks(_verified_with, case.world_size, case, faults)[0].items():
        wrong = {d.kind for d in found.differences if not d.ok}
        assert wrong >= faults[name][1], name
        assert found.suspect is not None


def _verified_with(
    rank: int, case: Case | Cell, faults: dict[str, tuple[Fault, set[str]]]
) -> dict[str, Verification]:
    return {name: verified(rank, case, fault) for name, (fault, _) in faults.items()}


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(self.down(functional.dropout(self.up(x), 0.5)), y)


def test_a_repeated_dropout_mask_is_found() -> None:
    right, repeated = run_ranks(_dropping, 2)[0]
    assert right.ok
    assert {d.kind for d in repeated.differences if not d.ok} >= {"loss", *BACKWARD}


def _dropping(rank: int) -> list[Verification]:
    """As it is, and with the masks of the first piece of the batch for all."""
    torch.manual_seed(0)
    model = Dropping().double()
    batch = {"x": torch.randn(8, 8).double(), "y": torch.randn(8, 4).double()}
    graph = capture(model, batch)
    plan = make_plan(
        graph.fingerprint, global_batch=8, dp=2, num_microbatches=2,
        regions=greedy_regions(graph, 1),
    )  # fmt: skip
    draws = RandomState.draws
    fault = mock.patch.object(
        RandomState, "draws", lambda *args: [replace(one, piece=0) for one in draws(*args)]
    )
    pm = parallelize(model, graph, plan)
    right = pm.verify(model, batch)
    with fault:
        return [right, pm.verify(model, batch)]


def test_a_trained_module_is_not_compared_with_the_first_weights() -> None:
    run_ranks(_other_weights, 1)


def _other_weights(rank: int) -> None:
    case = Case("gpt", (1, 1), 0, False, torch.float64, 1, "sgd")
    graph, model = graph_of(case.model, case.dtype), make_model(case.model, case.dtype)
    pm = parallelize(model, graph, greedy_plan(graph, case))
    with torch.no_grad():
        next(iter(pm.parameters())).add_(1e-3)
    with pytest.raises(PlanError, match="weights of the model are not those"):
        pm.verify(model, make_batches(case.model, case.dtype)[0])
