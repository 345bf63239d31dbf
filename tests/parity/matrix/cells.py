"""Trains families on processes in every way, and measures how far they are from one device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from autoplan.runtime.comparison import FLOOR, LOSS_RTOL, RTOL
from autoplan.runtime.parallelize import parallelize
from autoplan.runtime.reference_dropout import reference_dropout
from tests.distributed.cases import lowest_dtype
from tests.distributed.harness import run_ranks
from tests.distributed.parity import full
from tests.distributed.training import Run, make_optimizer, train_alone, train_parallel
from tests.parity.matrix.families import FAMILIES, case, graph_of
from tests.parity.matrix.ways import EAGER, WAYS, plan_of, refusal

SEED = 11
DEADLINE_S = 900


@dataclass(frozen=True)
class Cell:
    """One family trained one way.

    Attributes:
        refused: why autoplan does not run it, else empty.
        loss, gradients, weights: largest differences over all ranks and tensors, of tensors as
            shares of the largest magnitude of each (see ``share``); weights and buffers are those
            after a step of Adam.
        same_bits: whether the gradients are those of the way that it repeats; None if of none.
        allowed: for gradients and weights, by the lowest precision of the model.
        allowed_loss: for the loss.
    """

    refused: str = ""
    loss: float = 0.0
    gradients: float = 0.0
    weights: float = 0.0
    same_bits: bool | None = None
    allowed: float = 0.0
    allowed_loss: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether it ran and differs by no more than rounding."""
        return (
            not self.refused
            and self.loss <= self.allowed_loss
            and max(self.gradients, self.weights) <= self.allowed
            and self.same_bits is not False
        )

    @property
    def largest(self) -> float:
        return max(self.loss, self.gradients, self.weights)


def share(got: Mapping[str, Tensor], expected: Mapping[str, Tensor], dtype: torch.dtype) -> float:
    """Largest max|a - b| / (max|b| + L floor / rtol), L the largest magnitude of all tensors.

    At most ``rtol`` where max|a - b| <= rtol max|b| + floor L holds for every tensor.
    """
    magnitudes = {name: float(value.abs().max()) for name, value in expected.items()}
    rest = max(magnitudes.values(), default=0.0) * FLOOR[dtype] / RTOL[dtype]
    errors = {name: float((value - expected[name]).abs().max()) for name, value in got.items()}
    found = [
        0.0 if error == 0.0 else error / (magnitudes[name] + rest) for name, error in errors.items()
    ]
    return max([0.0, *map(_numbered, found)])


def _numbered(difference: float) -> float:
    """Infinite where it is none, so that it is the largest of any."""
    return math.inf if math.isnan(difference) else difference


@cache
def _truth(family: str) -> tuple[Run, dict[str, Tensor]]:
    """One step on one device, and the buffers after it."""
    tested = case(family)
    model = FAMILIES[family].build()
    optimizer = make_optimizer("adamw", model.parameters())
    with reference_dropout(seed=SEED, step=0):
        run = train_alone(model, [tested.batch], optimizer)
    return run, {name: full(value) for name, value in model.named_buffers()}


def run_family(family: str, names: Sequence[str]) -> dict[str, Cell]:
    """The cells of a family; ways of one number of ranks share their processes."""
    refused = {name: refusal(family, WAYS[name]) for name in names}
    cells = {name: Cell(refused=reason) for name, reason in refused.items() if reason}
    left = [name for name in names if name not in cells]
    for world_size in sorted({WAYS[name].world_size for name in left}):
        own = [name for name in left if WAYS[name].world_size == world_size]
        cells |= _on_processes(family, own, world_size)
    return {name: cells[name] for name in names}


def _on_processes(family: str, names: Sequence[str], world_size: int) -> dict[str, Cell]:
    _truth(family)
    ranks = run_ranks(_train, world_size, family, names, deadline_s=DEADLINE_S)
    return {name: worst([rank[name] for rank in ranks]) for name in names}


def _train(rank: int, family: str, names: Sequence[str]) -> dict[str, Cell]:
    """What this rank holds; ways that it has no bits of are compared with one device alone."""
    exact = not FAMILIES[family].own_operators
    bits = {EAGER: _truth(family)[0].gradients} if exact else {}
    return {name: _cell(family, name, bits) for name in names}


def _cell(family: str, name: str, bits: dict[str, dict[str, Tensor]]) -> Cell:
    graph, batch, way = graph_of(family), case(family).batch, WAYS[name]
    expected, buffers = _truth(family)
    pm = parallelize(FAMILIES[family].build(), graph, plan_of(family, way), seed=SEED)
    got = train_parallel(pm, [batch], make_optimizer("adamw", pm.parameters()))
    bits[name] = got.gradients
    got.weights |= {n: full(v) for n, v in pm.named_buffers() if n in buffers}
    twin = None if way.same_bits_as is None else bits.get(way.same_bits_as)
    return replace(
        compared(got, replace(expected, weights=expected.weights | buffers), lowest_dtype(graph)),
        same_bits=None if twin is None else _same(got.gradients, twin),
    )


def compared(got: Run, expected: Run, lowest: torch.dtype) -> Cell:
    """How far a training is from that of one device, of what this rank holds.

    Args:
        lowest: the lowest precision of any value that the model computes.
    """
    losses = zip(got.losses, expected.losses, strict=True)
    return Cell(
        loss=max(_numbered(abs(loss - truth) / abs(truth)) for loss, truth in losses),
        gradients=share(got.gradients, expected.gradients, lowest),
        weights=share(got.weights, expected.weights, lowest),
        allowed=RTOL[lowest],
        allowed_loss=LOSS_RTOL[lowest],
    )


def _same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def worst(ranks: Sequence[Cell]) -> Cell:
    """The largest differences of all ranks."""
    bits = [rank.same_bits for rank in ranks if rank.same_bits is not None]
    return Cell(
        loss=max(rank.loss for rank in ranks),
        gradients=max(rank.gradients for rank in ranks),
        weights=max(rank.weights for rank in ranks),
        same_bits=all(bits) if bits else None,
        allowed=ranks[0].allowed,
        allowed_loss=ranks[0].allowed_loss,
    )
