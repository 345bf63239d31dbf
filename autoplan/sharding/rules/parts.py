"""Which letters are worth splitting as several equal parts.

A fused projection ``[q; k; v]`` makes one output dim of three parts that a reader takes apart, by
a split or by a view. Each part must be split over the ranks on its own, so the projection is
offered with as many parts as a reader wants. The wish travels from the reader to the projection
through operators with a single operand.

A batch that is not the leftmost factor of a merged dim (``sequence x batch``) is sharded in parts
as well; there the parts follow from how the operands arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from autoplan.sharding.equation import Dims, Equation, extent
from autoplan.sharding.placement import Placement, Shard
from autoplan.trace.graph import OpGraph, OpNode, Ref

MAX_PARTS = 4
"""Fused projections join at most this many; more parts are heads seen as parts."""


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


class Wishes:
    """The numbers of parts that the readers of a graph's tensors want, each worked out once."""

    def __init__(self, graph: OpGraph, equation_of: Callable[[OpNode], Equation | None]) -> None:
        self._graph = graph
        self._equation_of = equation_of
        self._known: dict[tuple[Ref, int], frozenset[int]] = {}

    def of(self, node: OpNode, equation: Equation) -> dict[str, tuple[int, ...]]:
        """For each letter that is a whole dim of an output, the parts that readers want."""
        wanted = {
            letters[0]: self._at(Ref(node.name, index), dim)
            for index, dims in enumerate(equation.outputs)
            for dim, letters in enumerate(dims)
            if len(letters) == 1 and letters[0] not in equation.local_ops
        }
        return {letter: tuple(sorted(parts)) for letter, parts in wanted.items() if parts}

    def _at(self, ref: Ref, dim: int) -> frozenset[int]:
        key = ref, dim
        if key not in self._known:
            readers = (self._graph.by_name[name] for name in self._graph.readers.get(ref, ()))
            wanted = {parts for reader in readers for parts in self._by(reader, dim)}
            self._known[key] = frozenset(parts for parts in wanted if 1 < parts <= MAX_PARTS)
        return self._known[key]

    def _by(self, reader: OpNode, dim: int) -> Iterator[int]:
        """What a reader wants of a dim of its one operand, itself or for its own readers."""
        equation = self._equation_of(reader) if len(reader.operands) == 1 else None
        if equation is None:
            return
        letters = equation.inputs[0][dim]
        if len(letters) > 1:
            for index, letter in enumerate(letters):
                if index and letter not in equation.whole:
                    yield extent(letters[:index], equation.sizes)
        elif letters and letters[0] not in equation.whole:
            for index, at in _alone(equation.outputs, letters[0]):
                yield from self._at(Ref(reader.name, index), at)


def _alone(outputs: tuple[Dims, ...], letter: str) -> list[tuple[int, int]]:
    return [
        (index, dim)
        for index, dims in enumerate(outputs)
        for dim, letters in enumerate(dims)
        if letters == (letter,)
    ]
