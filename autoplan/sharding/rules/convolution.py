"""What reads images by windows or places: samples and channels are loops, places stay whole.

Places would have to exchange their margins with other ranks for every window; samples and channels
need no message within the operator, and the sum over input channels one behind it.
"""

from __future__ import annotations

from collections.abc import Mapping

from autoplan.sharding.equation import Dims, Equation
from autoplan.sharding.rules.base import Call, Rule, letters, names, sizes

_LINEAR = (frozenset({0}),)


def _convolution(weight: tuple[str, str]) -> Rule:
    """Rule of a convolution whose weight has the dims ``weight`` before its window.

    With several groups ``g`` a rank takes whole groups (of a depthwise one, channels); with one, it
    splits output channels ``n`` or input channels ``c``.
    """

    def rule(call: Call) -> Equation | None:
        image, window = call.shapes[0], call.shapes[1][2:]
        groups = call.argument(6, "groups", 1)
        if len(image) != len(window) + 2 or not isinstance(groups, int):
            return None
        result = call.outputs[0].shape
        places = {f"x{i}": size for i, size in enumerate(image[2:])}
        made = {f"y{i}": size for i, size in enumerate(result[2:])}
        inner = {f"k{i}": size for i, size in enumerate(window)}
        extents = {"b": image[0], "g": groups, "c": image[1] // groups, "n": result[1] // groups}

        def dims(*terms: str) -> Dims:
            return tuple(tuple(name for name in term if extents[name] != 1) for term in terms)

        return Equation(
            inputs=(
                (*dims("b", "gc"), *_each(places)),
                (*dims(*weight), *_each(inner)),
                *[dims("gn")] * (len(call.inputs) - 2),
            ),
            outputs=((*dims("b", "gn"), *_each(made)),),
            sizes={**extents, **places, **made, **inner},
            whole=frozenset((*places, *made, *inner, *("nc" if groups > 1 else ""))),
            additive=frozenset({2}),
        )

    return rule


def _each(found: Mapping[str, int]) -> Dims:
    return tuple((letter,) for letter in found)


def _resized(places: int, *, linear: bool) -> Rule:
    """Rule of what makes the last ``places`` dims of another size from all of their elements."""

    def rule(call: Call) -> Equation:
        shape, result = call.shapes[0], call.outputs[0].shape
        lead = len(shape) - places
        made = tuple((f"y{dim}",) for dim in range(lead, len(shape)))
        inner = {f"y{dim}": result[dim] for dim in range(lead, len(shape))}
        return Equation(
            inputs=(letters(shape),),
            outputs=((*letters(shape)[:lead], *made),) * len(call.outputs),
            sizes={**sizes(shape), **inner},
            whole=names(range(lead, len(shape))) | frozenset(inner),
            linear=_LINEAR if linear else (),
        )

    return rule


def _sampled(call: Call) -> Equation:
    """An image ``(b, c, ...)`` read at places ``(b, ..., dims)``, the same in every channel."""
    image, grid = call.shapes
    made = call.outputs[0].shape[2:]
    extents = {"b": image[0], "c": image[1], "p": grid[-1]}
    extents |= {f"x{dim}": size for dim, size in enumerate(image[2:])}
    extents |= {f"y{dim}": size for dim, size in enumerate(made)}

    def dims(*names: str) -> Dims:
        return tuple((name,) if extents[name] != 1 else () for name in names)

    read = [f"x{dim}" for dim in range(len(made))]
    places = [f"y{dim}" for dim in range(len(made))]
    return Equation(
        inputs=(dims("b", "c", *read), dims("b", *places, "p")),
        outputs=(dims("b", "c", *places),),
        sizes=extents,
        whole=frozenset(extents) - {"b", "c"},
    )


def _of_rank(places: int) -> dict[str, Rule]:
    linear = {
        f"avg_pool{places}d.default": places,
        f"adaptive_avg_pool{places}d.default": places,
        f"upsample_nearest{places}d.vec": places,
        f"_upsample_nearest_exact{places}d.vec": places,
    }
    return {
        f"aten.conv{places}d.default": _convolution(("gn", "c")),
        f"aten.conv{places}d.padding": _convolution(("gn", "c")),
        f"aten.max_pool{places}d.default": _resized(places, linear=False),
        f"aten.adaptive_max_pool{places}d.default": _resized(places, linear=False),
        **{f"aten.{name}": _resized(count, linear=True) for name, count in linear.items()},
    }


RULES = {
    **_of_rank(1),
    **_of_rank(2),
    **_of_rank(3),
    "aten.conv_transpose1d.default": _convolution(("gc", "n")),
    "aten.conv_transpose2d.input": _convolution(("gc", "n")),
    "aten.conv_transpose3d.input": _convolution(("gc", "n")),
    "aten.upsample_linear1d.vec": _resized(1, linear=True),
    "aten.upsample_bilinear2d.vec": _resized(2, linear=True),
    "aten.upsample_bicubic2d.vec": _resized(2, linear=True),
    "aten.upsample_trilinear3d.vec": _resized(3, linear=True),
    "aten._upsample_bilinear2d_aa.vec": _resized(2, linear=True),
    "aten._upsample_bicubic2d_aa.vec": _resized(2, linear=True),
    "aten.max_pool2d_with_indices.default": _resized(2, linear=False),
    "aten.grid_sampler.default": _sampled,
}
