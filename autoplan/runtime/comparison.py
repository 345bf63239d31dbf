"""Compares a step of the sharded program with the model on one device, tensor by tensor.

Every rank runs the whole model on the whole batch, and checks each piece that it holds, so that
copies which differ between ranks show. A tensor is equal when

    max |a - b| <= rtol max |b| + floor L

with b the truth and L the largest magnitude among all truths of its kind: where a true gradient is
zero (the bias of attention keys), rounding is measured against the model's gradients. A loss has no
floor. After the gradients come their norm, clipped, what the forward made of buffers (running
statistics), and one step each of SGD and of Adam, whose epsilon of 1e-4 keeps the rounding of
gradients near zero from becoming whole steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autoplan.errors import PlanError
from autoplan.runtime.layout import Box
from autoplan.runtime.reference_batch_norm import reference_batch_norm
from autoplan.runtime.reference_dropout import reference_dropout
from autoplan.runtime.state import TrainingState
from autoplan.runtime.weights import local
from autoplan.trace.inputs import TARGETS
from autoplan.trace.program import outputs_to_loss
from autoplan.verdict import Difference

if TYPE_CHECKING:
    from autoplan.runtime.data import Batch
    from autoplan.runtime.module import ParallelModule

RTOL = {torch.float64: 1e-9, torch.float32: 1e-4}
FLOOR = {torch.float64: 1e-12, torch.float32: 1e-7}
LOSS_RTOL = {torch.float64: 1e-9, torch.float32: 1e-5}

MAX_NORM = 0.5
_NOT_HELD = -1.0
_OPTIMIZERS: Mapping[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, eps=1e-4),
}


@dataclass(frozen=True, slots=True)
class _Check:
    """One tensor to compare on this rank; ``found`` is None where it holds nothing of it."""

    kind: str
    name: str
    truth: Tensor
    found: Tensor | None
    box: Box | None = None

    def error(self) -> float:
        if self.found is None:
            return _NOT_HELD
        truth = self.truth
        if self.box is not None:
            truth = truth[self.box.within(Box((0,) * truth.dim(), tuple(truth.shape)))]
        if truth.shape != self.found.shape:
            return math.inf
        gap = (self.found - truth).abs()
        largest = gap.max().item() if gap.numel() else 0.0
        return math.inf if math.isnan(largest) else largest


def compare_step(
    pm: ParallelModule,
    state: TrainingState,
    model: nn.Module,
    loss_of: Callable[[], Tensor],
    batch: Batch,
    lowest: torch.dtype,
) -> tuple[Difference, ...]:
    """Runs one step on all ranks and on each of them alone; all ranks must call it.

    Weights and buffers are as before when it returns, and gradients gone.

    Args:
        state: of ``pm``.
        model: the whole model, with the weights that ``pm`` has.
        loss_of: its loss on the whole batch.
        batch: the global batch, the same on every rank.
        lowest: the lowest precision in which anything is computed.

    Returns:
        The loss, all gradients, their norm, all buffers that the program reads, and all weights
        after a step of each optimizer; the same on every rank.

    Raises:
        PlanError: when the program computes in less than float32, or the weights differ already.
    """
    if lowest not in RTOL:
        raise PlanError(
            f"the program computes in {_word(lowest)}, where rounding hides faults: verify a plan "
            "with precision fp32"
        )
    ours = _Pieces(state, {name: p for name, p in model.named_parameters() if p.requires_grad})
    if not all(d.ok for d in _differences(ours.checks("weights", _value), lowest, state)):
        raise PlanError(
            "the weights of the model are not those of the parallel module: give the model that it "
            "was compiled from, as it was then"
        )
    model.zero_grad()
    pm.zero_grad()
    before = state.random.document()
    buffers = [*model.buffers(), *state.buffers.values()]
    kept = [buffer.clone() for buffer in buffers]
    with reference_dropout(**before), reference_batch_norm(pm.plan):
        loss = loss_of()
    loss.backward()
    _make_dense(ours.whole.values())
    found = pm.train_step(pm.shard_batch(batch))
    state.random.restore(before)
    moved = _buffers(state, model)
    with torch.no_grad():
        for buffer, value in zip(buffers, kept, strict=True):
            buffer.copy_(value)
    checks = [_Check("loss", "", loss.detach(), found)]
    differences = [*_differences(checks, lowest, state)]
    differences += _differences(ours.checks("gradient", _gradient), lowest, state)
    norm = nn.utils.clip_grad_norm_(ours.whole.values(), MAX_NORM).detach()
    checks = [_Check("norm", "", norm, pm.clip_grad_norm_(MAX_NORM).to(norm))]
    differences += _differences(checks, lowest, state)
    differences += _differences(moved, lowest, state)
    for name, make in _OPTIMIZERS.items():
        with _stepped(make, ours.whole.values()), _stepped(make, ours.own.values()):
            differences += _differences(ours.checks(name, _value), lowest, state)
    model.zero_grad()
    pm.zero_grad()
    return tuple(differences)


class _Pieces:
    """The trainable parameters of the whole model, and those of which this rank holds a piece."""

    def __init__(self, state: TrainingState, whole: dict[str, nn.Parameter]) -> None:
        self.whole = whole
        self.own = {name: p for name, p in state.parameters.items() if p.requires_grad}
        self._state = state

    def checks(self, kind: str, value_of: Callable[[nn.Parameter], Tensor]) -> list[_Check]:
        """The pieces of something that every parameter has."""
        return [
            _Check(
                kind,
                name,
                value_of(parameter),
                local(value_of(self.own[name])) if name in self.own else None,
                self._state.layouts[name].box(self._state.mesh),
            )
            for name, parameter in self.whole.items()
        ]


def _buffers(state: TrainingState, model: nn.Module) -> list[_Check]:
    """Copies of the buffers that any rank's program reads, in double precision.

    A rank that has no part in one has nothing to say of it.
    """
    found = []
    for name, buffer in model.named_buffers():
        if name in state.layouts:
            double = torch.complex128 if buffer.is_complex() else torch.float64
            truth = buffer.detach().to(double, copy=True)
            own = state.buffers.get(name)
            own = truth if own is None else local(own).detach().to(double, copy=True)
            found.append(_Check("buffer", name, truth, own))
    return found


def _make_dense(parameters: Iterable[nn.Parameter]) -> None:
    """Gradients as the program has them, which has no sparse ones (``trace.lookups``)."""
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()


def _value(parameter: nn.Parameter) -> Tensor:
    return parameter.detach()


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _differences(
    checks: Sequence[_Check], lowest: torch.dtype, state: TrainingState
) -> list[Difference]:
    """The largest differences over all ranks."""
    errors = torch.tensor([check.error() for check in checks], dtype=torch.float64)
    if state.mesh.world_size > 1:
        errors = errors.to(state.mesh.device)
        dist.all_reduce(errors, dist.ReduceOp.MAX)
    magnitudes = [check.truth.abs().max().item() if check.truth.numel() else 0.0
                  for check in checks]  # fmt: skip
    largest = max(magnitudes, default=0.0)
    return [
        Difference(
            kind=check.kind,
            name=check.name,
            largest=math.inf if error == _NOT_HELD else error,
            allowed=_allowed(check.kind, magnitude, largest, lowest),
        )
        for check, error, magnitude in zip(checks, errors.tolist(), magnitudes, strict=True)
    ]


def _allowed(kind: str, magnitude: float, largest: float, lowest: torch.dtype) -> float:
    if kind == "loss":
        return LOSS_RTOL[lowest] * magnitude
    return RTOL[lowest] * magnitude + FLOOR[lowest] * largest


@contextmanager
def _stepped(
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], parameters: Iterable[nn.Parameter]
) -> Iterator[None]:
    """Inside, the parameters are one step of an optimizer further."""
    stepped = list(parameters)
    before = [local(parameter).clone() for parameter in stepped]
    make(stepped).step()
    try:
        yield
    finally:
        for parameter, value in zip(stepped, before, strict=True):
            local(parameter).copy_(value)


def loss_on(model: nn.Module, batch: Batch, loss_fn: Callable[[Any, Any], Tensor] | None) -> Tensor:
    """The loss of a model on a batch by name or by position, targets of a loss function last."""
    if loss_fn is None:
        output = model(**batch) if isinstance(batch, Mapping) else model(*batch)
        return outputs_to_loss(output)
    if isinstance(batch, Mapping):
        given = dict(batch)
        targets = given.pop(TARGETS if TARGETS in given else "labels")
        return loss_fn(model(**given), targets)
    return loss_fn(model(*batch[:-1]), batch[-1])


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
