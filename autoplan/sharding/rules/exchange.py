"""Exchanges over ``cp`` pass everything on but the dim that they cut or put together."""

from __future__ import annotations

from autoplan.sharding.equation import Dims, Equation
from autoplan.sharding.exchange import EXCHANGE
from autoplan.sharding.rules.base import Call, letters, sizes


def _exchange(call: Call) -> Equation:
    """The dim of the tokens has a letter of its own on either side, and both stay whole."""
    (read,), (made,) = call.shapes, call.output_shapes
    held = letters(read)
    moved = next((dim for dim, size in enumerate(made) if size != read[dim]), None)
    if moved is None:
        return Equation(
            inputs=(held,), outputs=(held,), sizes=sizes(read), linear=(frozenset({0}),)
        )

    def dims(name: str, size: int) -> Dims:
        return (*held[:moved], () if size == 1 else (name,), *held[moved + 1 :])

    extents = {"read": read[moved], "made": made[moved]}
    return Equation(
        inputs=(dims("read", read[moved]),),
        outputs=(dims("made", made[moved]),),
        sizes={**sizes(read), **extents},
        whole=frozenset(extents),
        linear=(frozenset({0}),),
    )


RULES = {EXCHANGE: _exchange}
