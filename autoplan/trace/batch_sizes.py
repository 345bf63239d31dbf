"""Which sizes follow the batch: two traces of one model, at two batches, read side by side.

The second batch is the global one, so that a forward that does otherwise at large batches than at
small ones is found out.

A size that is equal in both is a constant; one that grows with the batch is a multiple of it.
Numbers that are computed with may also count pairs of samples, or all but one of them, and a matrix
of samples by samples is kept in memory that grows with the square of the batch. Anything else (a
size ``batch + 1``, a graph with other nodes) cannot be written for a global batch and is refused
with the node and its source line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import fx

from autoplan.errors import UnsupportedModelError
from autoplan.trace.graph import BatchInt
from autoplan.trace.refusals import refused
from autoplan.trace.torch_private import tree_leaves

FIRST = 2
_SECOND = 3

Batches = tuple[int, int]
_FORMS = ((0,), (0, 0), (-1,), (0, -1))
"""Samples, their pairs, all but one, and pairs of different ones: ``BatchInt.offsets``."""


def traced_batches(global_batch: int | None) -> Batches:
    """The batches to trace at: the graph is written at the first, and compared at the second."""
    return FIRST, max(global_batch or _SECOND, _SECOND)


def paired(
    first: fx.Graph, second: fx.Graph, batches: Batches
) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Corresponding nodes of the two traces.

    Raises:
        UnsupportedModelError: at the first node where the traces differ.
    """
    nodes, others = list(first.nodes), list(second.nodes)
    for node, other in zip(nodes, others, strict=False):
        if node.op != other.op or (node.op == "call_function" and node.target != other.target):
            raise differs(node, f"the graph differs at batch {batches[0]} and {batches[1]}")
        yield node, other
    if len(nodes) != len(others):
        longer = max(nodes, others, key=len)
        raise differs(longer[min(len(nodes), len(others)) - 1], "the number of operators varies")


def mark_batch_dims(first: fx.Graph, second: fx.Graph, batches: Batches) -> None:
    """Sets ``meta["batch_dims"]`` of every node of both graphs: one tuple per output tensor."""
    for node, other in paired(first, second, batches):
        marks = tuple(
            tuple(
                dim
                for dim, (size, size_other) in enumerate(zip(x.shape, y.shape, strict=True))
                if coefficient(size, size_other, batches, node)
            )
            for x, y in _results(node, other)
        )
        node.meta["batch_dims"] = other.meta["batch_dims"] = marks


def coefficient(size: int, other: int, batches: Batches, node: fx.Node) -> int | None:
    """How often the batch goes into a size, given at both batches; None for a constant."""
    if size == other:
        return None
    found = _following(size, other, batches, _FORMS[:1])
    if found is None:
        raise _no_multiple(size, other, batches, node)
    return found.coefficient


def power(size: int, other: int, batches: Batches, node: fx.Node) -> int:
    """The power of the batch to which a number of bytes, given at both batches, is proportional."""
    if size == other:
        return 0
    found = _following(size, other, batches, _FORMS[:2])
    if found is None:
        raise _no_multiple(size, other, batches, node)
    return len(found.offsets)


def batch_int(size: int, other: int, batches: Batches, node: fx.Node) -> int | BatchInt:
    """An integer argument of both traces as a constant or by what it counts."""
    if size == other:
        return size
    found = _following(size, other, batches, _FORMS)
    if found is None:
        raise _no_multiple(size, other, batches, node)
    return found


def _following(
    size: int, other: int, batches: Batches, forms: Sequence[tuple[int, ...]]
) -> BatchInt | None:
    """The first of the forms that has both values."""
    for offsets in forms:
        once = BatchInt(1, offsets).at(batches[0])
        found = BatchInt(size // once, offsets)
        if (found.at(batches[0]), found.at(batches[1])) == (size, other):
            return found
    return None


def _no_multiple(size: int, other: int, batches: Batches, node: fx.Node) -> UnsupportedModelError:
    return differs(
        node,
        f"the size {size} at batch {batches[0]} and {other} at batch {batches[1]} "
        "is no multiple of the batch",
    )


def differs(node: fx.Node, what: str) -> UnsupportedModelError:
    """The error for a node that is not the same at both batches."""
    return refused(
        node,
        f"{what} in {node.target}",
        "sizes must be constants or multiples of the batch, "
        "and batch_dims= names inputs whose dim 0 is not the batch",
    )


def _results(node: fx.Node, other: fx.Node) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The tensors that a node gives in both traces, side by side."""
    found, others = _tensors(node), _tensors(other)
    if [value.dim() for value in found] != [value.dim() for value in others]:
        raise differs(node, "the number of results, or of their dims, varies")
    return list(zip(found, others, strict=True))


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    return [x for x in tree_leaves(node.meta.get("val")) if isinstance(x, torch.Tensor)]
