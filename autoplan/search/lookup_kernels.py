"""Kernels of lookups in tables: they touch the rows that are read, not the table.

Rows are read in whole sectors of device memory, so narrow pieces of rows, as tables split by
columns over many ranks have, cost as much as wider ones. The backward fills a gradient of the
table's size with zeros, sorts the numbers of the rows (a radix sort of 64-bit keys with their
places: eight passes that read and write both, and one that counts) and adds up the gradient of
every row that was read. Where rows are split over ranks, the stand-ins of ``runtime.ops`` look up
every number, and clear what is not theirs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.sharding.placement import local_shape
from autoplan.sharding.strategies import Strategy
from autoplan.trace.graph import DTYPE_BYTES, OpNode, TensorMeta
from cost_models.work import Streaming, Work

_BAGS = "autoplan.bags.default"
LOOKUPS = frozenset({"aten.embedding.default", _BAGS})

_SECTOR_BYTES = 32
_NUMBER_BYTES = 8
_SORT_BYTES = 8 * 2 * 16 + 8
_BACKWARD_KERNELS = 14  # zeros, sort 9, runs of equal numbers 2, rows in parts and added 2
_MASK_KERNELS = 6  # subtract, compare 2, and, two choices
_MASK_BYTES = 40  # of a number: what these read and write


@dataclass(frozen=True, kw_only=True, slots=True)
class LookupWork:
    """The forward and the backward of one lookup on one rank."""

    forward: tuple[Work, ...]
    backward: tuple[Work, ...]


def lookup_work(
    node: OpNode, read: Sequence[TensorMeta], strategy: Strategy, ranks: int
) -> LookupWork:
    """The kernels of a lookup.

    Args:
        read: the table, the numbers of its rows, and what else the call reads; whole.
        ranks: of the axis that the strategy splits over.
    """
    table, numbers = (
        local_shape(meta.shape, port.placement, ranks)
        for meta, port in zip(read[:2], strategy.inputs[:2], strict=True)
    )
    width = DTYPE_BYTES[read[0].dtype]
    count = math.prod(numbers)
    result = math.prod(local_shape(node.outputs[0].shape, strategy.outputs[0], ranks)) * width
    row = _sectors(table[-1] * width)
    masked = strategy.local_op is not None
    cleared = 2 * result if masked and node.target != _BAGS else 0
    forward = Streaming(
        bytes=count * (row + _NUMBER_BYTES + _MASK_BYTES * masked) + result + cleared,
        kernels=1 + _MASK_KERNELS * masked,
    )
    touched = min(count, table[0])
    backward = Streaming(
        bytes=math.prod(table) * width + count * (row + _SORT_BYTES) + 2 * touched * row + cleared,
        kernels=_BACKWARD_KERNELS + masked,
    )
    return LookupWork(forward=(forward,), backward=(backward,))


def _sectors(nbytes: int) -> int:
    return -(-nbytes // _SECTOR_BYTES) * _SECTOR_BYTES
