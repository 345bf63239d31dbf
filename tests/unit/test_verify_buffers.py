"""``pm.verify`` compares buffers: running statistics behind a step, and complex tables."""

from __future__ import annotations

from contextlib import nullcontext
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from autoplan.runtime import batch_norm
from autoplan.runtime.parallelize import parallelize
from autoplan.trace.capture import capture
from tests.distributed.greedy import greedy_regions
from tests.distributed.plans import make_plan

STILL = mock.patch.object(batch_norm, "_share", return_value=0.0)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 5), nn.BatchNorm1d(5)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x)).exp().mean()


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [
        (nullcontext(), []),
        (STILL, ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]),
    ],
)
def test_statistics_that_do_not_move_are_found(fault, wrong: list[str]) -> None:
    torch.manual_seed(2)
    model, x = Normed().double(), torch.randn(8, 3, dtype=torch.float64)
    graph = capture(model, (x,))
    plan = make_plan(graph.fingerprint, global_batch=8, regions=greedy_regions(graph, tp=1))
    with fault:
        found = parallelize(model, graph, plan).verify(model, (x,))
    assert [(d.kind, d.name) for d in found.differences if not d.ok] == [
        ("buffer", name) for name in wrong
    ]
    assert model.norm.num_batches_tracked == 0


class Turned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.angles: Tensor
        self.register_buffer("angles", torch.polar(torch.ones(2), torch.arange(2.0)))

    def forward(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(self.linear(x).unflatten(-1, (2, 2)))
        return torch.view_as_real(pairs * self.angles).square().mean()


def test_imaginary_parts_that_differ_are_found() -> None:
    model, x = Turned(), torch.randn(8, 4)
    graph = capture(model, (x,))
    plan = make_plan(graph.fingerprint, global_batch=8, regions=greedy_regions(graph, tp=1))
    pm = parallelize(model, graph, plan)
    assert pm.verify(model, (x,)).ok
    model.angles = model.angles.conj().resolve_conj()
    wrong = [(d.kind, d.name) for d in pm.verify(model, (x,)).differences if not d.ok]
    assert wrong == [("buffer", "angles")]
