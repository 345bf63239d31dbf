"""Which elements a dropout keeps: a function of the element's place in the whole tensor.

A tensor is read as rows along its last dim. Element ``j`` of row ``r`` is kept where

    h (2 h + 1) >= p 2^64   with   h = a_r b_j + c_r   modulo 2^64

``a_r`` (odd), ``c_r`` and ``b_j`` are different outputs of SplitMix64 (Steele, Lea and Flood 2014)
seeded by the key of the draw. The linear part is the multiply-add hashing of Dietzfelbinger (1996),
under which any two places of a row are independent; the quadratic is RC6's (Rivest et al. 1998), a
permutation whose high bits depend on all bits. All of it is exact in int64 on any device, and costs
three kernels over the tensor, where a full mix of every place would take more than a dozen.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_COLUMNS = 2**62  # numbers of rows are below, those of columns from here
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
    *leading, last = zip(shape or (1,), splits or ((),), strict=True)
    row = _rows(leading, device)
    column, _ = _places(*last, device)
    numbers = torch.cat([2 * row, 2 * row + 1, column + _COLUMNS])
    factor, term, columns = _mix(numbers, key).split([len(row), len(row), len(column)])
    hashed = torch.addcmul(term.unsqueeze(1), (factor | 1).unsqueeze(1), columns)
    hashed.addcmul_(hashed, hashed, value=2)
    return (hashed >= int(p * 2**64) - 2**63).view(tuple(shape))


def _rows(dims: Sequence[tuple[int, Sequence[Split]]], device: torch.device) -> Tensor:
    """Numbers of this piece's rows among those of the whole tensor."""
    joined: list[tuple[int, Sequence[Split]]] = []
    for size, splits in dims:
        if joined and not splits:
            joined[-1] = joined[-1][0] * size, joined[-1][1]
        else:
            joined.append((size, splits))
    rows = None
    for size, splits in joined:
        index, whole = _places(size, splits, device)
        rows = index if rows is None else (rows.unsqueeze(1) * whole + index).flatten()
    return torch.zeros(1, dtype=torch.int64, device=device) if rows is None else rows


def _places(size: int, splits: Sequence[Split], device: torch.device) -> tuple[Tensor, int]:
    """Indices in the whole dim of those of a piece, and the whole size."""
    index = torch.arange(size, device=device)
    for parts, pieces, piece in reversed(splits):
        chunk = size // parts
        if parts > 1:
            index = index // chunk * (pieces * chunk) + index % chunk
        index = index + piece * chunk
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
