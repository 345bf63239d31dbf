"""Runs an emitted program on simulated ranks and compares it with the model on one device.

``tp`` ranks are threads; dp ranks, microbatches and pipeline stages run one after another. Counts,
losses and gradients are summed by hand, as data parallelism does; tensors are cut off from autograd
between stages, and their gradients handed back, as a pipeline does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from autoplan.codegen.build import build_module
from autoplan.codegen.emitted import BatchInput, Emitted, EmittedStage, StoredTensor
from autoplan.codegen.program import Boundary
from autoplan.runtime.collectives import AxisGroup
from autoplan.runtime.comparison import FLOOR, LOSS_RTOL, RTOL
from autoplan.runtime.random import Draws
from autoplan.runtime.reference_dropout import reference_dropout
from tests.parity.ranks import combine, per_rank, shards
from tests.parity.threads import on_ranks

SEED, STEP = 3, 5
"""By which dropouts draw."""


@dataclass(frozen=True)
class Outcome:
    """The global loss and the whole gradient of every parameter, by name."""

    loss: Tensor
    gradients: dict[str, Tensor]


def one_device(model: nn.Module, loss_of: Callable[[], Tensor]) -> Outcome:
    """The truth: the model as it is, on the whole batch."""
    model.zero_grad()
    with reference_dropout(seed=SEED, step=STEP):
        loss = loss_of()
    loss.backward()
    return Outcome(loss.detach(), _gradients(model))


def sharded(emitted: Emitted, model: nn.Module, batch: Mapping[str, Tensor]) -> Outcome:
    """The emitted program on all ranks and microbatches."""
    ranks = on_ranks(emitted.tp, lambda axis: _rank(emitted, model, batch, axis))
    for other in ranks[1:]:
        torch.testing.assert_close(other.loss, ranks[0].loss, rtol=0, atol=0)
    gradients = {
        name: combine([rank.gradients[name] for rank in ranks], stored.placement)
        for name, stored in emitted.parameters.items()
    }
    return Outcome(ranks[0].loss, gradients)


def _rank(
    emitted: Emitted, model: nn.Module, batch: Mapping[str, Tensor], axis: AxisGroup
) -> Outcome:
    pieces = emitted.dp * emitted.num_microbatches
    inputs = [
        [_piece(batch[given.target], given, index, pieces) for given in emitted.inputs]
        for index in range(pieces)
    ]
    stages = [_Stage(emitted, stage, model, axis) for stage in emitted.stages]
    for stage in stages:
        stage.count(inputs)
    losses = []
    for piece, values in enumerate(inputs):
        received: tuple[Tensor, ...] = ()
        draws = Draws(seed=SEED, step=STEP, piece=piece, pieces=pieces)
        for stage in stages:
            received = stage.forward(received, values, draws)
        losses.append(received[0].detach())
        gradients: tuple[Tensor | None, ...] = (None,)
        for stage in reversed(stages):
            gradients = stage.backward(gradients)
    summed: dict[str, Tensor] = {}
    for stage in stages:
        for name, gradient in _gradients(stage.root).items():
            summed[name] = summed[name] + gradient if name in summed else gradient
    return Outcome(torch.stack(losses).sum(), summed)


class _Stage:
    """One stage on one rank, with the microbatch that is under way."""

    def __init__(
        self, emitted: Emitted, stage: EmittedStage, model: nn.Module, axis: AxisGroup
    ) -> None:
        self.root = build_sharded(emitted, model, axis, stage)
        self.stage = stage
        self.counts: tuple[Tensor, ...] = ()
        self.received: tuple[Tensor, ...] = ()
        self.sent: tuple[Tensor, ...] = ()

    def count(self, inputs: list[list[Tensor]]) -> None:
        terms = [self.root.count(*self._own(values)) for values in inputs]
        self.counts = tuple(torch.stack(column).sum(0) for column in zip(*terms, strict=True))

    def forward(
        self, received: tuple[Tensor, ...], values: list[Tensor], draws: Draws
    ) -> tuple[Tensor, ...]:
        for tensor, boundary in zip(received, self.stage.receives, strict=True):
            _check_boundary(tensor, boundary)
        self.received = tuple(
            tensor.detach().requires_grad_(boundary.requires_grad)
            for tensor, boundary in zip(received, self.stage.receives, strict=True)
        )
        given = {"draws": draws} if self.stage.takes_draws else {}
        sent = self.root(*self.received, *self._own(values), counts=self.counts, **given)
        self.sent = sent if isinstance(sent, tuple) else (sent,)
        return self.sent

    def backward(self, gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        flows = [(t, g) for t, g in zip(self.sent, gradients, strict=True) if t.requires_grad]
        torch.autograd.backward([t for t, _ in flows], [g for _, g in flows])
        return tuple(
            torch.zeros_like(t) if t.requires_grad and t.grad is None else t.grad
            for t in self.received
        )

    def _own(self, values: list[Tensor]) -> list[Tensor]:
        return [values[index] for index in self.stage.inputs]


def _check_boundary(tensor: Tensor, boundary: Boundary) -> None:
    found = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.requires_grad
    assert found == (boundary.shape, boundary.dtype, boundary.requires_grad)


def build_sharded(
    emitted: Emitted, model: nn.Module, axis: AxisGroup, stage: EmittedStage | None = None
) -> nn.Module:
    """A stage (by default the first) with one rank's pieces of the weights of ``model``."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}

    def held(name: str, stored: StoredTensor) -> Tensor:
        whole = tensors[name].detach()
        assert tuple(whole.shape) == stored.meta.shape
        pieces = shards(whole, stored.placement, axis.size)
        return pieces[axis.rank].clone() if type(axis.rank) is int else per_rank(pieces)

    return build_module(
        emitted,
        stage or emitted.stages[0],
        lambda name: nn.Parameter(
            held(name, emitted.parameters[name]), requires_grad=tensors[name].requires_grad
        ),
        lambda name: held(name, emitted.buffers[name]),
        {"tp": axis},
    )


def assert_same(found: Outcome, expected: Outcome, lowest: torch.dtype | None = None) -> None:
    """Within the tolerances of the dtype, relative to each tensor and to the largest gradient.

    Args:
        lowest: the dtype that decides, where a model computes in a lower one than its loss's.
    """
    dtype = lowest or expected.loss.dtype
    assert set(found.gradients) == set(expected.gradients)
    largest = max(float(g.abs().max()) for g in expected.gradients.values())
    _close("loss", found.loss, expected.loss, LOSS_RTOL[dtype], 0.0)
    for name, gradient in expected.gradients.items():
        floor = FLOOR[dtype] * largest
        _close(name, found.gradients[name], gradient, RTOL[dtype], floor)


def _close(name: str, found: Tensor, expected: Tensor, rtol: float, floor: float) -> None:
    assert found.shape == expected.shape, name
    error = float((found - expected).abs().max())
    assert error <= rtol * float(expected.abs().max()) + floor, f"{name} is off by {error}"


def _gradients(module: nn.Module) -> dict[str, Tensor]:
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in module.named_parameters()
    }


def _piece(whole: Tensor, given: BatchInput, index: int, pieces: int) -> Tensor:
    if not given.meta.batch_dims:
        return whole
    return whole.chunk(pieces, given.meta.batch_dims[0])[index].contiguous()
