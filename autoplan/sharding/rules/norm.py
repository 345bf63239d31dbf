"""Normalisations over trailing dims, which stay whole."""

from __future__ import annotations

from autoplan.sharding.equation import Equation
from autoplan.sharding.rules.base import Call, broadcast, letters, names, sizes


def _norm(call: Call) -> Equation:
    shape = call.shapes[0]
    normalized = len(call.argument(1, "normalized_shape"))
    return Equation(
        inputs=tuple(broadcast(operand, shape) for operand in call.shapes),
        outputs=(letters(shape),),
        sizes=sizes(shape),
        whole=names(range(len(shape) - normalized, len(shape))),
    )


RULES = {
    "aten.layer_norm.default": _norm,
    "aten.rms_norm.default": _norm,
}
