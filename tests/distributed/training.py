"""The same training on one device and in parallel, and what must be equal of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor, nn

from autoplan.runtime.comparison import LOSS_RTOL
from autoplan.runtime.module import ParallelModule
from tests.distributed.parity import assert_parity, full

MAX_NORM = 0.5

Batches = Sequence[dict[str, Tensor]]


@dataclass
class Run:
    """What a training showed.

    Attributes:
        gradients: of the first step, before clipping.
        norm: of the gradients of the last step.
        weights: after the last step.
    """

    losses: list[float] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    norm: float = 0.0
    weights: dict[str, Tensor] = field(default_factory=dict)


def make_optimizer(name: str, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """SGD, or AdamW whose epsilon keeps rounding noise of zero gradients from becoming steps."""
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    return torch.optim.AdamW(parameters, lr=0.01, eps=1e-4)


def train_alone(
    model: nn.Module, batches: Batches, optimizer: torch.optim.Optimizer, *, clip: bool = True
) -> Run:
    """Trains on whole batches with the model's own loss."""
    run = Run()
    for batch in batches:
        optimizer.zero_grad()
        output = model(**batch)
        loss = output if isinstance(output, Tensor) else output.loss
        loss.backward()
        if not run.gradients:
            run.gradients = {
                n: full(p.grad) for n, p in model.named_parameters() if p.requires_grad
            }
        if clip:
            run.norm = nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM).item()
        optimizer.step()
        run.losses.append(loss.item())
    run.weights = {n: full(p) for n, p in model.named_parameters()}
    return run


def train_parallel(
    pm: ParallelModule,
    batches: Batches,
    optimizer: torch.optim.Optimizer,
    *,
    by_step: bool = True,
    clip: bool = True,
) -> Run:
    """Trains on this rank's shard of the same batches, by ``train_step`` or by ``backward()``."""
    run = Run()
    for batch in batches:
        optimizer.zero_grad()
        own = pm.shard_batch(batch)
        if by_step:
            loss = pm.train_step(own)
        else:
            loss = pm(**own)
            loss.backward()
        if not run.gradients:
            run.gradients = {n: full(p.grad) for n, p in pm.named_parameters() if p.requires_grad}
        if clip:
            run.norm = pm.clip_grad_norm_(MAX_NORM).item()
        optimizer.step()
        run.losses.append(loss.item())
    run.weights = {n: full(p) for n, p in pm.named_parameters()}
    return run


def check_equal(got: Run, expected: Run, dtype: torch.dtype) -> None:
    rtol = LOSS_RTOL[dtype]
    assert got.losses == pytest.approx(expected.losses, rel=rtol)
    assert got.norm == pytest.approx(expected.norm, rel=10 * rtol)
    assert_parity(got.gradients, expected.gradients, dtype)
    assert_parity(got.weights, expected.weights, dtype)


def check_stages_equal(got: Run, expected: Run, dtype: torch.dtype) -> None:
    """Of the weights, those that this rank's stages hold."""
    assert got.weights
    check_equal(
        got,
        replace(
            expected,
            gradients={name: expected.gradients[name] for name in got.gradients},
            weights={name: expected.weights[name] for name in got.weights},
        ),
        dtype,
    )
