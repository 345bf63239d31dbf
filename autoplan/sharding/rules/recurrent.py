"""Recurrent layers run by one operator: samples are loops, steps and widths stay whole."""

from __future__ import annotations

from autoplan.sharding.equation import Dims, Equation
from autoplan.sharding.rules.base import Call


def _recurrent(call: Call) -> Equation | None:
    """Input and output ``(samples, steps, width)`` or steps first, states ``(layers, samples,
    width)``; packed sequences, and a single one without a dim of samples, run whole.
    """
    arguments = call.node.args
    if not isinstance(arguments[-1], bool) or len(call.shapes[0]) != 3:
        return None
    at = 0 if arguments[-1] else 1
    states = len(call.outputs) - 1
    letters = iter(range(10**6))
    extents = {"b": call.shapes[0][at]}

    def dims(shape: tuple[int, ...], samples: int | None) -> Dims:
        named = tuple("b" if dim == samples else f"w{next(letters)}" for dim in range(len(shape)))
        extents.update(zip(named, shape, strict=True))
        return tuple((name,) for name in named)

    inputs = tuple(
        dims(shape, at if not operand else 1 if operand <= states else None)
        for operand, shape in enumerate(call.shapes)
    )
    outputs = tuple(
        dims(shape, 1 if result else at) for result, shape in enumerate(call.output_shapes)
    )
    return Equation(inputs=inputs, outputs=outputs, sizes=extents, whole=frozenset(extents) - {"b"})


RULES = {f"aten.{name}.input": _recurrent for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")}
