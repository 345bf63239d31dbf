"""What a rule is: from one call of an operator to its equation.

On shards the operator runs with the same arguments, but for sizes (of a view, of the pieces of a
split), which follow the local shapes of the outputs. A rule may split a letter only where that
gives the right result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autoplan.sharding.equation import Dims, Equation, Shape
from autoplan.trace.graph import OpNode, TensorMeta


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call of an operator: the node and the metas of its tensor operands."""

    node: OpNode
    inputs: tuple[TensorMeta, ...]

    @property
    def outputs(self) -> tuple[TensorMeta, ...]:
        return self.node.outputs

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Shapes of the operands."""
        return tuple(meta.shape for meta in self.inputs)

    @property
    def output_shapes(self) -> tuple[Shape, ...]:
        return tuple(meta.shape for meta in self.outputs)

    def argument(self, index: int, name: str, default: Any = None) -> Any:
        """The argument at position ``index`` or passed as ``name``."""
        return self.node.argument(index, name, default)

    def dim(self, index: int, name: str = "dim", default: int = 0) -> int:
        """A dim argument of the first operand, counted from the left."""
        return self.argument(index, name, default) % max(len(self.shapes[0]), 1)


Rule = Callable[[Call], Equation | None]
"""The equation of a call; None when every rank must compute the whole operator."""


def letters(shape: Shape) -> Dims:
    """One letter per dim, named by its position; none for a dim of size one."""
    return tuple(() if size == 1 else (f"d{dim}",) for dim, size in enumerate(shape))


def sizes(shape: Shape) -> dict[str, int]:
    """Extents of the ``letters`` of a shape."""
    return {f"d{dim}": size for dim, size in enumerate(shape)}


def broadcast(operand: Shape, result: Shape) -> Dims:
    """Letters of an operand that is broadcast to ``result``, whose letters are ``letters``."""
    return aligned(tuple((f"d{dim}",) for dim in range(len(result))), result, operand)


def aligned(dims: Dims, result: Shape, operand: Shape) -> Dims:
    """Letters of an operand that is broadcast to ``result``, whose letters are ``dims``."""
    first = len(result) - len(operand)
    return tuple(
        dims[first + dim] if size != 1 and size == result[first + dim] else ()
        for dim, size in enumerate(operand)
    )


def broadcast_shape(shapes: Sequence[Shape]) -> Shape:
    """The shape that tensors of these shapes are broadcast to."""
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(next((n for n in column if n != 1), 1) for column in zip(*padded, strict=True))


def names(dims: Sequence[int]) -> frozenset[str]:
    """The letters of these dims."""
    return frozenset(f"d{dim}" for dim in dims)
