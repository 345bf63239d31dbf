"""Complex numbers, and Fourier transforms.

Every dim that is not transformed is a loop. The two parts of a number stay together. Terms of sums
are not passed through: a sum is completed before.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.sharding.equation import Equation, Shape
from autoplan.sharding.rules.base import Call, letters, sizes

_TRANSFORMS = "fft", "ifft", "rfft", "irfft"


def _kept(source: Shape, result: Shape, whole: Sequence[int]) -> Equation:
    """The dims that both have are loops, but for those that stay whole."""
    loops = {f"d{dim}" for dim in range(min(len(source), len(result))) if dim not in whole}
    made = {letter: letter if letter in loops else f"made_{letter}" for letter in sizes(result)}
    extents = {made[letter]: size for letter, size in sizes(result).items()} | sizes(source)
    return Equation(
        inputs=(letters(source),),
        outputs=(tuple(tuple(made[letter] for letter in dim) for dim in letters(result)),),
        sizes=extents,
        whole=frozenset(extents) - loops,
    )


def _parts(call: Call) -> Equation:
    """A trailing dim that holds both parts of a number comes or goes."""
    return _kept(call.shapes[0], call.outputs[0].shape, ())


def _transform(call: Call) -> Equation:
    return _over(call, [call.argument(2, "dim", -1)])


def _transform_two(call: Call) -> Equation:
    return _over(call, call.argument(2, "dim", (-2, -1)))


def _transform_all(call: Call) -> Equation:
    """Without dims the last ones that sizes are given for, or all."""
    stated = call.argument(1, "s")
    rank = len(call.shapes[0])
    last = range(rank - len(stated), rank) if stated is not None else range(rank)
    return _over(call, call.argument(2, "dim") or last)


def _over(call: Call, dims: Sequence[int]) -> Equation:
    rank = len(call.shapes[0])
    return _kept(call.shapes[0], call.outputs[0].shape, [dim % rank for dim in dims])


RULES = {
    "aten.view_as_complex.default": _parts,
    "aten.view_as_real.default": _parts,
    **{f"aten.fft_{name}.default": _transform for name in _TRANSFORMS},
    **{f"aten.fft_{name}2.default": _transform_two for name in _TRANSFORMS},
    **{f"aten.fft_{name}n.default": _transform_all for name in _TRANSFORMS},
}
