"""Placements of a tensor on one mesh axis, in DTensor's terms.

``Shard(dim, parts)`` reads the dim as ``(parts, size / parts)`` and splits the second factor: rank
r holds the r-th chunk of every part. ``parts=1`` is the ordinary contiguous shard. Parts are what
a fused projection needs (``[q; k; v]`` in one weight: ``parts=3``), and what a view gives when the
sharded factor is not the leftmost of a merged dim; DTensor's name for it is ``_StridedShard``.

Gradients follow a fixed duality: the gradient of a ``Shard(d)`` tensor is ``Shard(d)``, that of a
``Partial`` tensor is ``Replicate``, that of a ``Replicate`` tensor is ``Replicate`` at its producer
(a reader may leave it ``Partial``; the conversion between the two is part of the edge).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SHARD = re.compile(r"Shard\((\d+)(?:, parts=(\d+))?\)")


@dataclass(frozen=True, slots=True)
class Replicate:
    """Every rank holds the whole tensor."""

    def __repr__(self) -> str:
        return "Replicate()"


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank r holds chunk r of ``dim``, or of every one of its ``parts`` equal parts."""

    dim: int
    parts: int = 1

    def __repr__(self) -> str:
        return f"Shard({self.dim})" if self.parts == 1 else f"Shard({self.dim}, parts={self.parts})"


@dataclass(frozen=True, slots=True)
class Partial:
    """Every rank holds a term; the tensor is their sum."""

    def __repr__(self) -> str:
        return "Partial(sum)"


Placement = Replicate | Shard | Partial


def parse(text: str) -> Placement:
    """The placement that ``repr`` printed as ``text``.

    Raises:
        ValueError: when the text is not a placement.
    """
    if text == "Replicate()":
        return Replicate()
    if text == "Partial(sum)":
        return Partial()
    match = _SHARD.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is not a placement; expected Replicate(), Shard(dim) or Partial(sum)"
        )
    return Shard(int(match[1]), int(match[2] or 1))


def grad_of(placement: Placement) -> Placement:
    """Placement of the gradient that the producer of a tensor expects."""
    return placement if isinstance(placement, Shard) else Replicate()


def divides(placement: Placement, shape: tuple[int, ...], ranks: int) -> bool:
    """Whether every rank gets an equal, whole piece of a tensor of this global shape."""
    if not isinstance(placement, Shard):
        return True
    return placement.dim < len(shape) and shape[placement.dim] % (placement.parts * ranks) == 0


def local_shape(shape: tuple[int, ...], placement: Placement, ranks: int) -> tuple[int, ...]:
    """Shape of one rank's piece; the placement must divide the shape."""
    if not isinstance(placement, Shard):
        return shape
    dim = placement.dim
    return (*shape[:dim], shape[dim] // ranks, *shape[dim + 1 :])


def local_fraction(placement: Placement, ranks: int) -> float:
    """Share of the tensor's bytes that one rank holds."""
    return 1 / ranks if isinstance(placement, Shard) else 1.0
