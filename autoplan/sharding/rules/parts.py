"""Which letters are worth splitting as several equal parts.

A fused projection ``[q; k; v]`` makes one output dim of three parts that a reader takes apart, by
a split or by a view. Each part must be split over the ranks on its own, so the projection is
offered with as many parts as a reader wants. The wish travels from the reader to the projection
through operators with a single operand.

A batch that is not the leftmost factor of a merged dim (``sequence x batch``) is sharded in parts
as well; there the parts follow from how the operands arrive.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.sharding.equation import Dims, Equation, extent
from autoplan.sharding.placement import Placement, Shard
from autoplan.sharding.rules.registry import equation_of
from autoplan.trace.graph import OpGraph, OpNode, Ref

MAX_PARTS = 4
"""Fused projections join at most this many; more parts are heads seen as parts."""


def wanted_parts(node: OpNode, equation: Equation, graph: OpGraph) -> dict[str, tuple[int, ...]]:
    """For each letter that is a whole dim of an output, the numbers of parts that readers want."""
    wanted = {
        letters[0]: _wanted_at(graph, Ref(node.name, index), dim)
        for index, dims in enumerate(equation.outputs)
        for dim, letters in enumerate(dims)
        if len(letters) == 1 and letters[0] not in equation.local_ops
    }
    return {letter: tuple(sorted(parts)) for letter, parts in wanted.items() if parts}


def arriving_parts(
    equation: Equation, placements: Sequence[Placement]
) -> dict[str, tuple[int, ...]]:
    """For each letter that is sharded where an operand arrives, its number of parts there."""
    found: dict[str, tuple[int, ...]] = {}
    for dims, placement in zip(equation.inputs, placements, strict=False):
        if isinstance(placement, Shard) and placement.parts > 1:
            letters = dims[placement.dim]
            for index, letter in enumerate(letters):
                left = extent(letters[:index], equation.sizes)
                if placement.parts % left == 0 and letter not in equation.local_ops:
                    found[letter] = (*found.get(letter, ()), placement.parts // left)
    return found


def _wanted_at(graph: OpGraph, ref: Ref, dim: int) -> set[int]:
    found: set[int] = set()
    for name in graph.readers.get(ref, ()):
        reader = graph.by_name[name]
        if len(reader.operands) != 1:
            continue
        equation = equation_of(reader, graph)
        if equation is None:
            continue
        letters = equation.inputs[0][dim]
        if len(letters) > 1:
            found |= {
                extent(letters[:index], equation.sizes)
                for index, letter in enumerate(letters)
                if index and letter not in equation.whole
            }
        elif letters and letters[0] not in equation.whole:
            for index, at in _alone(equation.outputs, letters[0]):
                found |= _wanted_at(graph, Ref(name, index), at)
    return {parts for parts in found if 1 < parts <= MAX_PARTS}


def _alone(outputs: tuple[Dims, ...], letter: str) -> list[tuple[int, int]]:
    return [
        (index, dim)
        for index, dims in enumerate(outputs)
        for dim, letters in enumerate(dims)
        if letters == (letter,)
    ]
