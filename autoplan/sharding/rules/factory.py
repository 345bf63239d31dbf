"""Tensors made from sizes: constants split like any dim, counted ranges do not."""

from __future__ import annotations

from autoplan.sharding.equation import Dims, Equation
from autoplan.sharding.rules.base import Call, OpRule, letters, sizes


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
    "aten.full.default": OpRule(equation=_constant, size_argument=0),
    "aten.zeros.default": OpRule(equation=_constant, size_argument=0),
    "aten.ones.default": OpRule(equation=_constant, size_argument=0),
    "aten.new_zeros.default": OpRule(equation=_constant, size_argument=1),
    "aten.new_ones.default": OpRule(equation=_constant, size_argument=1),
    "aten.new_full.default": OpRule(equation=_constant, size_argument=1),
    "aten.scalar_tensor.default": OpRule(equation=_whole),
    "aten.arange.default": OpRule(equation=_whole),
    "aten.arange.start": OpRule(equation=_whole),
    "aten.arange.start_step": OpRule(equation=_whole),
}
