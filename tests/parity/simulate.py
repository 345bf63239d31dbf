"""Runs an emitted program on simulated ranks and compares it with the model on one device.

``tp`` ranks live in one process; dp ranks and microbatches run one after another, their counts,
losses and gradients summed by hand, as data parallelism does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from autoplan.codegen import BatchInput, Emitted, build_module
from autoplan.runtime.collectives import AxisGroup
from tests.parity.ranks import combine, of_rank, per_rank, shards, simulated_ranks

RTOL_OUTPUT = {torch.float64: 1e-9, torch.float32: 1e-5}
RTOL_GRADIENT = {torch.float64: 1e-9, torch.float32: 1e-4}
FLOOR = {torch.float64: 1e-12, torch.float32: 1e-7}


@dataclass(frozen=True)
class Outcome:
    """The global loss and the whole gradient of every parameter, by name."""

    loss: Tensor
    gradients: dict[str, Tensor]


def one_device(loss_of: Callable[[], Tensor], model: nn.Module) -> Outcome:
    """The truth: the model as it is, on the whole batch."""
    model.zero_grad()
    loss = loss_of()
    loss.backward()
    gradients = {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
    }
    return Outcome(loss.detach(), gradients)


def sharded(emitted: Emitted, model: nn.Module, batch: Mapping[str, Tensor]) -> Outcome:
    """The emitted program on all ranks and microbatches."""
    pieces = emitted.dp * emitted.num_microbatches
    if emitted.tp == 1:
        return _run(emitted, model, batch, pieces, AxisGroup("tp", 1, 0, ""))
    with simulated_ranks(emitted.tp) as axis:
        return _run(emitted, model, batch, pieces, axis)


def _run(
    emitted: Emitted, model: nn.Module, batch: Mapping[str, Tensor], pieces: int, axis: AxisGroup
) -> Outcome:
    root = build_sharded(emitted, model, axis)
    inputs = [
        [
            _alike(_piece(batch[given.target], given, index, pieces), axis)
            for given in emitted.inputs
        ]
        for index in range(pieces)
    ]
    terms = [root.count(*values) for values in inputs]
    counts = tuple(sum(column) for column in zip(*terms, strict=True))
    losses = []
    for values in inputs:
        loss = root(*values, counts)
        loss.backward()
        losses.append(_whole(loss.detach(), axis))
    gradients = {}
    for name, parameter in root.named_parameters():
        ranks = _ranks(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
        gradients[name] = combine(ranks, emitted.parameters[name].placement)
    return Outcome(torch.stack(losses).sum(), gradients)


def build_sharded(emitted: Emitted, model: nn.Module, axis: AxisGroup) -> nn.Module:
    """The emitted module with the weights of ``model``."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}

    def held(name: str, stored) -> Tensor:
        whole = tensors[name].detach()
        assert tuple(whole.shape) == stored.meta.shape
        pieces = shards(whole, stored.placement, axis.size)
        return whole.clone() if axis.size == 1 else per_rank(pieces)

    return build_module(
        emitted,
        lambda name: nn.Parameter(
            held(name, emitted.parameters[name]), requires_grad=tensors[name].requires_grad
        ),
        lambda name: held(name, emitted.buffers[name]),
        {"tp": axis},
    )


def assert_same(found: Outcome, expected: Outcome) -> None:
    """Within the tolerances of the dtype, relative to each tensor and to the largest gradient."""
    dtype = expected.loss.dtype
    assert set(found.gradients) == set(expected.gradients)
    largest = max(float(g.abs().max()) for g in expected.gradients.values())
    _close("loss", found.loss, expected.loss, RTOL_OUTPUT[dtype], 0.0)
    for name, gradient in expected.gradients.items():
        floor = FLOOR[dtype] * largest
        _close(name, found.gradients[name], gradient, RTOL_GRADIENT[dtype], floor)


def _close(name: str, found: Tensor, expected: Tensor, rtol: float, floor: float) -> None:
    assert found.shape == expected.shape, name
    error = float((found - expected).abs().max())
    assert error <= rtol * float(expected.abs().max()) + floor, f"{name} is off by {error}"


def _piece(whole: Tensor, given: BatchInput, index: int, pieces: int) -> Tensor:
    if not given.meta.batch_dims:
        return whole
    return whole.chunk(pieces, given.meta.batch_dims[0])[index].contiguous()


def _alike(whole: Tensor, axis: AxisGroup) -> Tensor:
    return whole if axis.size == 1 else per_rank([whole] * axis.size)


def _ranks(value: Tensor) -> list[Tensor]:
    return of_rank(value) if hasattr(value, "_local_tensors") else [value.detach()]


def _whole(value: Tensor, axis: AxisGroup) -> Tensor:
    ranks = _ranks(value)
    assert all(torch.equal(ranks[0], other) for other in ranks[1:]), "ranks disagree on the loss"
    return ranks[0]
