"""Normalisations over trailing dims, which stay whole."""

from __future__ import annotations

from autoplan.sharding.equation import Dims, Equation
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


def _group_norm(call: Call) -> Equation | None:
    """Statistics are taken within a sample and a group of channels."""
    shape, groups = call.shapes[0], call.argument(1, "num_groups")
    if not isinstance(groups, int):
        return None
    channels = ("g",) * (groups > 1) + ("c",) * (groups < shape[1])
    dims: Dims = (*letters(shape)[:1], channels, *letters(shape)[2:])
    return Equation(
        inputs=(dims, *[(channels,)] * len(call.inputs[1:])),
        outputs=(dims,),
        sizes={**sizes(shape), "g": groups, "c": shape[1] // groups},
        whole=names(range(2, len(shape))) | {"c"},
    )


RULES = {
    "aten.layer_norm.default": _norm,
    "aten.group_norm.default": _group_norm,
    "aten.rms_norm.default": _norm,
}
