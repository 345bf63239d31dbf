"""BatchNorm over ranks against PyTorch's own on the whole batch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from autoplan.runtime.batch_norm import synced_batch_norm
from autoplan.runtime.collectives import AxisGroup
from autoplan.runtime.random import Draws
from tests.parity.threads import on_ranks

DRAWS = Draws(seed=0, step=0)
ALONE = AxisGroup("tp", 1, 0, "")


def module(dims: int, momentum: float | None, affine: bool, tracks: bool) -> nn.Module:
    kind = nn.BatchNorm1d if dims <= 3 else nn.BatchNorm2d
    made = kind(4, momentum=momentum, affine=affine, track_running_stats=tracks).double()
    for value in (*made.parameters(), made.running_mean):
        if value is not None:
            value.data.normal_()
    return made


def call(norm: nn.Module, x: Tensor, draws: Draws | None = DRAWS, **split) -> Tensor:
    return synced_batch_norm(
        x, norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.num_batches_tracked,
        norm.training, norm.momentum, norm.eps, draws=draws, **split,
    )  # fmt: skip


@pytest.mark.parametrize("shape", [(12, 4), (6, 4, 5), (6, 4, 3, 2)])
@pytest.mark.parametrize("momentum", [0.3, None])
@pytest.mark.parametrize(("affine", "tracks"), [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("ranks", [1, 3])
def test_parts_of_the_batch(shape, momentum, affine, tracks, ranks):
    truth = module(len(shape), momentum, affine, tracks)
    steps = [torch.randn(shape).double() * 3 + 7 for _ in range(3)]
    pull = torch.randn(shape).double()
    copies = [copy.deepcopy(truth) for _ in range(ranks)]
    expected = [_run(truth, x, pull) for x in steps]

    def run(over: AxisGroup) -> list[tuple[Tensor, Tensor]]:
        norm, own = copies[over.rank], slice(over.rank, None, ranks)
        return [
            _run(lambda part: call(norm, part, axis=ALONE, over=over), x[own], pull[own])
            for x in steps
        ]

    found = on_ranks(ranks, run)
    for step, (y, dx) in enumerate(expected):
        for rank in range(ranks):
            own = slice(rank, None, ranks)
            torch.testing.assert_close(found[rank][step][0], y[own], rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(found[rank][step][1], dx[own], rtol=1e-9, atol=1e-10)
    for name, parameter in truth.named_parameters():
        total = sum(dict(norm.named_parameters())[name].grad for norm in copies)
        torch.testing.assert_close(total, parameter.grad, rtol=1e-10, atol=1e-10)
    for norm in copies:
        for name, buffer in truth.named_buffers():
            torch.testing.assert_close(norm.get_buffer(name), buffer, rtol=1e-10, atol=1e-12)
        x = steps[0]
        torch.testing.assert_close(
            call(norm, x, None, axis=ALONE), copy.deepcopy(truth).eval()(x), rtol=1e-9, atol=1e-10
        )


def _run(norm, x: Tensor, pull: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = norm(x)
    (y * pull).sum().backward()
    return y.detach(), x.grad


@pytest.mark.parametrize("parts", [1, 2])
def test_split_channels_update_the_statistics_of_all(parts):
    truth = module(2, 0.3, True, True)
    x = torch.randn(6, 4).double()
    copies = [copy.deepcopy(truth) for _ in range(2)]
    expected = truth(x)
    channels = [[0, 1], [2, 3]] if parts == 1 else [[0, 2], [1, 3]]

    def run(axis: AxisGroup, draws: Draws | None) -> Tensor:
        own, norm = channels[axis.rank], copies[axis.rank]
        return synced_batch_norm(
            x[:, own], norm.weight[own], norm.bias[own], norm.running_mean, norm.running_var,
            norm.num_batches_tracked, True, 0.3, norm.eps, draws=draws, axis=axis, shard=(1, parts),
        )  # fmt: skip

    for draws, whole in ((DRAWS, expected), (None, truth.eval()(x))):
        for rank, y in enumerate(on_ranks(2, lambda axis, draws=draws: run(axis, draws))):
            torch.testing.assert_close(y, whole[:, channels[rank]])
    for norm in copies:
        torch.testing.assert_close(norm.running_mean, truth.running_mean)
        torch.testing.assert_close(norm.running_var, truth.running_var)


def test_statistics_of_values_far_from_zero():
    """In float32, where squares of 1e4 would leave no digit of a variance of 1."""
    x = (torch.randn(64, 4, dtype=torch.float64) + 1e4).float()
    truth = nn.BatchNorm1d(4).double()
    expected = truth(x.double())
    norms = [nn.BatchNorm1d(4) for _ in range(2)]
    found = on_ranks(
        2, lambda over: call(norms[over.rank], x[over.rank :: 2], axis=ALONE, over=over)
    )
    torch.testing.assert_close(found[0].double(), expected[::2], rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(norms[0].running_var.double(), truth.running_var, rtol=1e-4, atol=0)


def test_a_block_that_runs_again_updates_once():
    norm, truth = module(2, 0.3, True, True), None
    truth = copy.deepcopy(norm)
    x = torch.randn(6, 4).double()
    truth(x)
    y = checkpoint(lambda x: call(norm, x, axis=ALONE), x.requires_grad_(), use_reentrant=False)
    y.sum().backward()
    torch.testing.assert_close(norm.running_mean, truth.running_mean)
    assert norm.num_batches_tracked == 1


def test_a_single_value_has_no_variance():
    with pytest.raises(ValueError, match="single value per channel"):
        call(module(2, 0.1, True, True), torch.randn(1, 4).double(), axis=ALONE)
