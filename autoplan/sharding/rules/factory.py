"""Tensors made from sizes: constants and draws split like any dim, counted ranges do not.

What is drawn differs from one device's; programs with such draws are planned, and refused to run on
several.
"""

from __future__ import annotations

from autoplan.sharding.equation import Equation
from autoplan.sharding.rules.base import Call, letters, sizes


def _constant(call: Call) -> Equation:
    result = call.outputs[0].shape
    return Equation(inputs=(), outputs=(letters(result),), sizes=sizes(result))


def _whole(call: Call) -> None:
    """Every rank makes all of it."""


RULES = {
    "aten.full.default": _constant,
    "aten.zeros.default": _constant,
    "aten.ones.default": _constant,
    "aten.rand.default": _constant,
    "aten.randn.default": _constant,
    "aten.scalar_tensor.default": _whole,
    "aten.arange.default": _whole,
    "aten.arange.start": _whole,
    "aten.arange.start_step": _whole,
    "aten.linspace.default": _whole,
    "aten.eye.default": _whole,
    "aten.tril_indices.default": _whole,
    "aten.triu_indices.default": _whole,
}
