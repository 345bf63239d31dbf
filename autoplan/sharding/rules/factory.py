"""Tensors made from sizes: constants and draws split like any dim, counted ranges do not.

What is drawn differs from one device's; programs with such draws are planned, and refused to run on
several.
"""

from __future__ import annotations

from autoplan.sharding.equation import Dims, Equation
from autoplan.sharding.rules.base import Call, letters, sizes


def _constant(call: Call) -> Equation:
    """An operand lends its type only, so none of its dims is a loop."""
    result = call.outputs[0].shape
    lent: list[Dims] = [tuple((f"of{dim}",) for dim in range(len(shape))) for shape in call.shapes]
    extents = {f"of{dim}": size for shape in call.shapes for dim, size in enumerate(shape)}
    return Equation(
        inputs=tuple(lent),
        outputs=(letters(result),),
        sizes={**extents, **sizes(result)},
        whole=frozenset(extents),
    )


def _whole(call: Call) -> None:
    """Every rank makes all of it."""


RULES = {
    "aten.full.default": _constant,
    "aten.zeros.default": _constant,
    "aten.ones.default": _constant,
    "aten.rand.default": _constant,
    "aten.randn.default": _constant,
    "aten.new_zeros.default": _constant,
    "aten.new_ones.default": _constant,
    "aten.new_full.default": _constant,
    "aten.scalar_tensor.default": _whole,
    "aten.arange.default": _whole,
    "aten.arange.start": _whole,
    "aten.arange.start_step": _whole,
    "aten.linspace.default": _whole,
    "aten.eye.default": _whole,
    "aten.tril_indices.default": _whole,
    "aten.triu_indices.default": _whole,
}
