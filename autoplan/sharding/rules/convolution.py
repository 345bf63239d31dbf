"""Convolutions and pooling: samples and channels are loops, places stay whole."""

from __future__ import annotations

from autoplan.sharding.equation import Equation, equation
from autoplan.sharding.rules.base import Call, letters, names, sizes


def _convolution(call: Call) -> Equation | None:
    """With groups, output channels read some input channels only, so both stay whole."""
    places = len(call.shapes[1]) - 2
    if len(call.shapes[0]) != places + 2:
        return None
    xs, ys, ks = (" ".join(f"{letter}{i}" for i in range(places)) for letter in "xyk")
    grouped = call.argument(6, "groups", 1) != 1
    bias = ", n" if len(call.inputs) == 3 else ""
    weight = "g" if grouped else "c"
    return equation(
        f"b c {xs}, n {weight} {ks}{bias} -> b n {ys}",
        call.shapes,
        call.output_shapes,
        whole=f"{xs} {ys} {ks}" + (" n c g" if grouped else ""),
        additive=(2,) if bias else (),
    )


def _pool(places: int):
    """Rule of a pooling over the last ``places`` dims."""

    def rule(call: Call) -> Equation:
        shape, pooled = call.shapes[0], call.outputs[0].shape
        lead = len(shape) - places
        result = tuple((f"y{dim}",) for dim in range(lead, len(shape)))
        inner = {f"y{dim}": pooled[dim] for dim in range(lead, len(shape))}
        return Equation(
            inputs=(letters(shape),),
            outputs=((*letters(shape)[:lead], *result),),
            sizes={**sizes(shape), **inner},
            whole=names(range(lead, len(shape))) | frozenset(inner),
        )

    return rule


RULES = {
    "aten.conv1d.default": _convolution,
    "aten.conv2d.default": _convolution,
    "aten.conv3d.default": _convolution,
    "aten.avg_pool2d.default": _pool(2),
    "aten.max_pool2d.default": _pool(2),
    "aten.adaptive_avg_pool2d.default": _pool(2),
}
