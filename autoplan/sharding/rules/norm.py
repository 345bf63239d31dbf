"""Normalisations over dims that stay whole."""

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


def _instance_norm(call: Call) -> Equation | None:
    """Statistics are taken within a sample and a channel; kept ones would be moved."""
    if len(call.inputs) > 3 or call.argument(5, "use_input_stats") is not True:
        return None
    shape = call.shapes[0]
    dims = letters(shape)
    return Equation(
        inputs=(dims, *[(dims[1],)] * len(call.inputs[1:])),
        outputs=(dims,),
        sizes=sizes(shape),
        whole=names(range(2, len(shape))),
    )


def _weight_norm(call: Call) -> Equation | None:
    """A weight of directions and lengths: the norm is over all dims but one."""
    shape, lengths = call.shapes
    if len(lengths) != len(shape):
        return None
    kept = call.dim(2)
    return Equation(
        inputs=(letters(shape), broadcast(lengths, shape)),
        outputs=(letters(shape),),
        sizes=sizes(shape),
        whole=names([dim for dim in range(len(shape)) if dim != kept]),
    )


RULES = {
    "aten._weight_norm.default": _weight_norm,
    "aten.instance_norm.default": _instance_norm,
    "aten.layer_norm.default": _norm,
    "aten.group_norm.default": _group_norm,
    "aten.rms_norm.default": _norm,
}
