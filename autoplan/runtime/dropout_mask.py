"""Which elements a dropout keeps: a function of the element's place in the whole tensor.

A tensor is read as rows along its last dim. Element ``j`` of row ``r`` is kept where

    h (2 h + 1) >= p 2^64   with   h = a_r b_j + c_r   modulo 2^64

``a_r`` (odd), ``c_r`` and ``b_j`` are outputs of SplitMix64 (Steele, Lea and Flood 2014) seeded by
the key of the draw. The linear part is the multiply-add hashing of Dietzfelbinger (1996), under
which any two places of a row are independent; the quadratic is RC6's (Rivest et al. 1998), a
permutation whose high bits depend on all bits. All of it is exact in int64 on any device, and costs
three kernels over the tensor, where a full mix of every place would take more than a dozen.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from autoplan.runtime.random import mixed

_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)

Split = tuple[int, int, int | Tensor]
"""How a dim is split, as (parts, pieces, piece): this one holds a chunk of every part."""


def keep_mask(
    shape: Sequence[int],
    splits: Sequence[Sequence[Split]],
    key: int,
    p: float,
    device: torch.device,
) -> Tensor:
    """True where an element of this piece is kept.

    Args:
        shape: of the piece.
        splits: of every dim, the last applied first; none for a dim that is whole.
        key: 64 bits that tell this draw from all others.
        p: the probability that an element is dropped, at least 0 and below 1.
    """
    places = [_places(size, of, device) for size, of in zip(shape, splits, strict=True)]
    if not places:
        places = [_places(1, (), device)]
    row, stride = torch.zeros((), dtype=torch.int64, device=device), 1
    for dim in reversed(range(len(places) - 1)):
        index, whole = places[dim]
        row = row + (index * stride).view(-1, *(1,) * (len(places) - 2 - dim))
        stride *= whole
    factor, term = _mix(2 * row, key) | 1, _mix(2 * row + 1, key)
    column = _mix(places[-1][0], mixed(key))
    if len(places) > 1:
        factor, term = factor.unsqueeze(-1), term.unsqueeze(-1)
    hashed = torch.addcmul(term, factor, column)
    hashed.addcmul_(hashed, hashed, value=2)
    return (hashed >= int(p * 2**64) - 2**63).view(tuple(shape))


def _places(size: int, splits: Sequence[Split], device: torch.device) -> tuple[Tensor, int]:
    """Indices in the whole dim of those of a piece, and the whole size."""
    index = torch.arange(size, device=device)
    for parts, pieces, piece in reversed(splits):
        chunk = size // parts
        index = (index // chunk * pieces + piece) * chunk + index % chunk
        size *= pieces
    return index, size


def _mix(number: Tensor, seed: int) -> Tensor:
    """Outputs of SplitMix64 by their number, from 0."""
    x = (number + 1) * _signed(_GOLDEN) + _signed(seed)
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        x = (x ^ _shifted(x, shift)) * _signed(multiplier)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """A shift to the right that brings in zeros."""
    return (x >> bits) & (2 ** (64 - bits) - 1)


def _signed(bits: int) -> int:
    """The int64 of these 64 bits."""
    return bits - 2**64 if bits >= 2**63 else bits
