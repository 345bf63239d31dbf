"""Autocast around tracing and training is refused: no graph and no plan knows its casts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from autoplan.errors import PlanError, UnsupportedModelError
from autoplan.runtime.parallelize import parallelize
from autoplan.trace.capture import capture
from tests.distributed.greedy import greedy_regions
from tests.distributed.plans import make_plan


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).float().square().mean()


def test_autocast_around() -> None:
    model, x = Model(), torch.randn(4, 3)
    on = "torch.autocast('cpu') is on"
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(UnsupportedModelError) as refusal,
    ):
        capture(model, (x,))
    assert on in str(refusal.value)
    graph = capture(model, (x,))
    plan = make_plan(graph.fingerprint, global_batch=4, regions=greedy_regions(graph, tp=1))
    pm = parallelize(model, graph, plan)
    for run in (pm.train_step, lambda batch: pm(*batch)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with pytest.raises(PlanError) as error:
                run((x,))
            assert on in str(error.value)
            with torch.autocast("cpu", enabled=False):
                torch.testing.assert_close(run((x,)).detach(), model(x).detach())
