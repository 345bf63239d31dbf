"""Operators of which samples are the only loops: dim 0 of what they read and make, if shared.

What moves elements between channels and places, grids of images, and cells of recurrent layers,
whose weights hold several gates side by side.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoplan.sharding.equation import Dims, Equation, Shape
from autoplan.sharding.rules.base import Call, Rule


def _samples(rank: int, carrying: int = 1) -> Rule:
    """Rule of an operator whose first ``carrying`` operands, of this rank, hold the samples."""

    def rule(call: Call) -> Equation | None:
        if len(call.shapes[0]) != rank:
            return None
        extents = {"b": call.shapes[0][0]}
        letters = iter(range(10**6))
        inputs = tuple(
            _dims(shape, position < carrying, letters, extents)
            for position, shape in enumerate(call.shapes)
        )
        outputs = tuple(_dims(shape, True, letters, extents) for shape in call.output_shapes)
        return Equation(
            inputs=inputs, outputs=outputs, sizes=extents, whole=frozenset(extents) - {"b"}
        )

    return rule


def _dims(shape: Shape, carries: bool, letters: Iterator[int], extents: dict[str, int]) -> Dims:
    named = ["b" if carries and not dim else f"w{next(letters)}" for dim in range(len(shape))]
    extents.update(zip(named, shape, strict=True))
    return tuple((name,) if extents[name] != 1 else () for name in named)


RULES = {
    "aten.pixel_shuffle.default": _samples(4),
    "aten.pixel_unshuffle.default": _samples(4),
    "aten.channel_shuffle.default": _samples(4),
    "aten.affine_grid_generator.default": _samples(3),
    "aten.im2col.default": _samples(4),
    "aten.col2im.default": _samples(3),
    "aten.gru_cell.default": _samples(2, carrying=2),
    "aten.lstm_cell.default": _samples(2, carrying=3),
    "aten.rnn_tanh_cell.default": _samples(2, carrying=2),
    "aten.rnn_relu_cell.default": _samples(2, carrying=2),
}
