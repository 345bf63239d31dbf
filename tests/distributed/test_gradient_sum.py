"""Sums of gradients over ranks: which there are, when and in what order they start."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from autoplan.plan import MeshPlan
from autoplan.runtime import gradients
from autoplan.runtime.gradients import GradientSum
from autoplan.runtime.mesh import build_mesh
from tests.distributed.harness import run_ranks

WIDTH = 64
"""Two weights of this width, squared, fill the least bucket that the tests allow."""


def weights(count: int, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(3)
    return [nn.Parameter(torch.randn(WIDTH, WIDTH, generator=draw).to(dtype)) for _ in range(count)]


def sums_of(parameters: list[nn.Parameter], *, overlaps: bool = True) -> GradientSum:
    """In buckets of two weights."""
    mesh = build_mesh(MeshPlan(dp=2))
    with mock.patch.object(gradients, "bucket_bytes", return_value=2 * parameters[0].nbytes):
        return GradientSum(parameters, mesh, overlaps=overlaps)


def term(parameters: list[nn.Parameter], order: list[int], factor: float) -> torch.Tensor:
    """Its gradients arrive in the reverse order: each weight is met behind those before it."""
    x = torch.ones(WIDTH, dtype=parameters[0].dtype)
    total = x.sum() * 0
    for index in order:
        total = total + factor * (index + 1) * (parameters[index] @ x).sum()
    return total


def sums_in_one_order(rank: int) -> None:
    parameters = weights(6)
    sums = sums_of(parameters)
    order = list(range(6))[:: -1 if rank else 1]
    sizes, all_reduce = [], dist.all_reduce

    def noted(tensor, *args, **kwargs):
        sizes.append((tensor.numel(), tensor.sum().item()))
        return all_reduce(tensor, *args, **kwargs)

    sums.open()
    sums.begin_last()
    with mock.patch.object(dist, "all_reduce", noted):
        term(parameters, order, rank + 1.0).backward()
        started = len(sizes)
        sums.close()
    assert started == len(sizes) == 3
    area = WIDTH * WIDTH
    wanted = [(6 + 5) * area, (4 + 3) * area, (2 + 1) * area]
    assert sizes == [(2 * area, (rank + 1.0) * total) for total in wanted]
    for index, parameter in enumerate(parameters):
        torch.testing.assert_close(parameter.grad, torch.full_like(parameter, 3.0 * (index + 1)))


def test_sums_start_in_the_backward_in_one_order_whatever_arrives_first() -> None:
    run_ranks(sums_in_one_order, 2)


def sums_with_gaps(rank: int, dtype: torch.dtype, overlaps: bool) -> None:
    """Weight 2 has no gradient, weight 4 is frozen, weight 5 has one from an earlier step."""
    parameters = weights(6, dtype)
    parameters[4].requires_grad_(False)
    sums = sums_of(parameters, overlaps=overlaps)
    earlier = torch.full_like(parameters[5], 7.0)
    parameters[5].grad = earlier.clone()
    sums.open()
    for microbatch in range(3):
        if microbatch == 2:
            sums.begin_last()
        term(parameters, [0, 1, 3, 5], rank + 1.0).backward()
    sums.close()
    assert parameters[2].grad is None
    assert parameters[4].grad is None
    for index in (0, 1, 3, 5):
        wanted = torch.full_like(parameters[index], 3 * 3.0 * (index + 1))
        torch.testing.assert_close(parameters[index].grad, wanted + earlier * (index == 5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("overlaps", [False, True])
def test_sums_of_what_gradients_there_are(dtype, overlaps) -> None:
    run_ranks(sums_with_gaps, 2, dtype, overlaps)


def sum_alone_beside_a_reader(rank: int) -> None:
    """A gradient that is a bucket alone, whose memory the rest of the backward reads."""
    first, second = weights(2)
    factor = torch.arange(float(WIDTH * WIDTH))
    with mock.patch.object(gradients, "bucket_bytes", return_value=1):
        sums = GradientSum([first, second], build_mesh(MeshPlan(dp=2)), overlaps=True)
    sums.open()
    sums.begin_last()
    ((first.view(-1) + second.view(-1)) * factor * (rank + 1)).sum().backward()
    sums.close()
    for parameter in (first, second):
        torch.testing.assert_close(parameter.grad, 3 * factor.view_as(parameter))


def test_a_gradient_whose_memory_another_has_is_summed_in_memory_of_its_own() -> None:
    run_ranks(sum_alone_beside_a_reader, 2)


def take_memory_again(rank: int) -> None:
    """Memory is taken again when its gradients are gone, and not before."""
    parameters = weights(4)
    sums = sums_of(parameters)

    def step(factor: float) -> list[torch.Tensor]:
        for parameter in parameters:
            parameter.grad = None
        sums.open()
        sums.begin_last()
        term(parameters, [0, 1, 2, 3], factor).backward()
        sums.close()
        found = [p.grad for p in parameters if p.grad is not None]
        for index, gradient in enumerate(found):
            wanted = torch.full_like(gradient, 2 * factor * (index + 1))
            torch.testing.assert_close(gradient, wanted)
        return found

    kept = step(1.0)[0]
    places = [gradient.data_ptr() for gradient in step(2.0)]
    torch.testing.assert_close(kept, torch.full_like(kept, 2.0))
    assert kept.data_ptr() not in places
    assert [gradient.data_ptr() for gradient in step(3.0)] == places


def test_memory_of_gradients_is_taken_again_when_they_are_gone() -> None:
    run_ranks(take_memory_again, 2)


def late_gradient(rank: int) -> None:
    parameters = weights(2)
    sums = sums_of(parameters)
    sums.open()
    sums.begin_last()
    term(parameters, [0, 1], 1.0).backward()
    with pytest.raises(RuntimeError, match="behind the start of its sum"):
        term(parameters, [0, 1], 1.0).backward()
    sums.close()


def test_a_gradient_that_comes_after_the_sum_is_refused() -> None:
    run_ranks(late_gradient, 2)
