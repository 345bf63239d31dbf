"""Gradients of tensor-parallel weights live in memory of their own, whatever autograd shares."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from autoplan.runtime.ops import local


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("join", [torch.add, lambda a, b: torch.cat((a, b)).view(2, 3).sum(0)])
def test_sums_over_microbatches_of_weights_whose_gradients_are_one_tensor(join) -> None:
    mesh = init_device_mesh("cpu", (1,))
    first, second = (
        torch.nn.Parameter(distribute_tensor(torch.ones(3), mesh, [Replicate()])) for _ in range(2)
    )
    scale = torch.tensor([1.0, 2.0, 3.0])
    for _ in range(3):
        (join(local(first), local(second)) * scale).sum().backward()
    for weight in (first, second):
        assert isinstance(weight.grad, DTensor)
        torch.testing.assert_close(weight.grad.to_local(), 3 * scale)
