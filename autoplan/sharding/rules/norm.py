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


def _group_norm(call: Call) -> Equation:
    """Statistics are taken within a sample, over channels and places."""
    shape = call.shapes[0]
    channels = (("d1",),)
    return Equation(
        inputs=(letters(shape), *[channels] * len(call.inputs[1:])),
        outputs=(letters(shape),),
        sizes=sizes(shape),
        whole=names(range(1, len(shape))),
    )


RULES = {
    "aten.layer_norm.default": _norm,
    "aten.group_norm.default": _group_norm,
    "aten.rms_norm.default": _norm,
}
