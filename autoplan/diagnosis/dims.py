"""Dims of weights and heads of attention that the common tensor-parallel degrees do not divide."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autoplan.diagnosis.lines import places
from autoplan.findings import Finding
from autoplan.sharding.rules import is_attention
from autoplan.sharding.rules.registry import equation_of
from autoplan.trace.graph import OpGraph, OpNode

DEGREES = (2, 4, 8)
"""Tensor parallelism within a node of two, four or eight devices."""
SHARE = 0.01
"""Weights that hold less than this share of all are no use to split."""
_ROUND = 64


@dataclass(frozen=True, slots=True)
class _Dim:
    what: str
    size: int


def indivisible(graph: OpGraph) -> Iterator[Finding]:
    """A finding for every size, with the lines that read it."""
    found: dict[_Dim, list[OpNode]] = {}
    for node in distinct_calls(graph):
        for dim in (*_of_weights(node, graph), *_of_heads(node, graph)):
            if _left_over(dim.size):
                found.setdefault(dim, []).append(node)
    sizes: dict[int, list[_Dim]] = {}
    for dim in found:
        sizes.setdefault(dim.size, []).append(dim)
    for size, dims in sizes.items():
        yield _finding(size, dims, [node.where for dim in dims for node in found[dim]])


def distinct_calls(graph: OpGraph) -> Iterator[OpNode]:
    """The calls outside of blocks and those in the first block of each kind."""
    for node in graph.of_kind("call"):
        if graph.representative.get(node.name, node.name) == node.name:
            yield node


def _left_over(size: int) -> list[int]:
    return [degree for degree in DEGREES if size % degree]


def _of_weights(node: OpNode, graph: OpGraph) -> Iterator[_Dim]:
    """Dims that a rule would split if they divided."""
    total = sum(weight.outputs[0].numel for weight in graph.of_kind("parameter"))
    weights = [graph.by_name[ref.node] for ref in node.operands]
    large = [w.kind == "parameter" and w.outputs[0].numel >= SHARE * total for w in weights]
    equation = equation_of(node, graph) if any(large) else None
    if equation is None:
        return
    for weight, is_large, dims in zip(weights, large, equation.inputs, strict=True):
        for dim, letters in enumerate(dims):
            if is_large and len(letters) == 1 and letters[0] not in equation.whole:
                yield _Dim(f"dim {dim} of {weight.target}", weight.outputs[0].shape[dim])


def _of_heads(node: OpNode, graph: OpGraph) -> Iterator[_Dim]:
    """Heads of fused attention, or of its first product where it is written out."""
    shapes = [graph.meta(ref).shape for ref in node.operands]
    if is_attention(node.target):
        yield _Dim("heads of attention", shapes[0][-3])
        if shapes[1][-3] != shapes[0][-3]:
            yield _Dim("heads of keys and values", shapes[1][-3])
    elif node.target == "aten.matmul.default" and [len(shape) for shape in shapes] == [4, 4]:
        kinds = {graph.by_name[ref.node].kind for ref in node.operands}
        if kinds == {"call"} and shapes[0][1] == shapes[1][1]:
            yield _Dim("heads of attention", shapes[0][1])


def _finding(size: int, dims: list[_Dim], wheres: list[str]) -> Finding:
    degrees = ", ".join(map(str, _left_over(size)))
    step = _ROUND if size > _ROUND else max(DEGREES)
    names = [dim.what for dim in dims]
    listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return Finding(
        kind="indivisible dim",
        effect="limits",
        what=f"{size}, {listed}, is no multiple of {degrees}",
        cost=f"over tp {degrees} it stays whole on every rank, in time and memory",
        cure=f"make it {-(-size // step) * step} if you may, or let the planner split another dim",
        places=places(wheres),
    )
