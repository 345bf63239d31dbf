"""Writing elements of a tensor by index: dims that are not indexed are loops."""

from __future__ import annotations

import math
from dataclasses import replace

from autoplan.sharding.equation import Dims, Equation
from autoplan.sharding.rules.base import Call, Rule, aligned, letters, sizes
from autoplan.sharding.rules.lookup import gather, indexed


def _scatter(call: Call) -> Equation | None:
    """Writes where a gather would read; what is written may be longer than its index."""
    made = gather(call)
    if len(call.inputs) == 3 and call.shapes[2] != call.shapes[1]:
        return None
    table, index = made.inputs
    return replace(
        made,
        inputs=(table, index, index)[: len(call.inputs)],
        outputs=(table,),
        whole=made.whole | {f"i{call.dim(1)}"},
        linear=(),
    )


def _scatter_add(call: Call) -> Equation | None:
    made = _scatter(call)
    return made and replace(made, linear=(frozenset({0, 2}),))


def _along(linear: bool) -> Rule:
    """Rule of writing slices of one dim, which a list numbers."""

    def rule(call: Call) -> Equation:
        at = call.dim(1)
        held, source = letters(call.shapes[0]), call.shapes[2]
        slices: Dims = (*held[:at], ("i",), *held[at + 1 :]) if source else ()
        whole: Dims = (*held[:at], ("v",), *held[at + 1 :])
        extents = {"v": call.shapes[0][at], "i": source[at]} if source else {}
        return Equation(
            inputs=(whole, (("i",),) * len(call.shapes[1]), slices),
            outputs=(whole,),
            sizes={**sizes(call.shapes[0]), **extents},
            whole=frozenset(extents),
            linear=(frozenset({0, 2}),) if linear else (),
        )

    return rule


def _index_put(call: Call) -> Equation | None:
    """Values are broadcast to what reading at the same indices would give."""
    table, *indices, values = call.shapes
    named = [dim for dim, index in enumerate(call.argument(1, "indices")) if index is not None]
    if any(meta.dtype == "bool" for meta in call.inputs[1:-1]):
        return _masked(call, named[0]) if len(named) == 1 and math.prod(values) == 1 else None
    made = indexed(table, named, indices)
    (read,) = made.outputs
    result = tuple(made.sizes[letter[0]] if letter else 1 for letter in read)
    picks = frozenset(letter for dims in made.inputs[1:] for dim in dims for letter in dim)
    return replace(
        made,
        inputs=(*made.inputs, aligned(read, result, values)),
        outputs=made.inputs[:1],
        whole=made.whole | picks,
        linear=(frozenset({0, len(indices) + 1}),) if call.argument(3, "accumulate", False) else (),
    )


def _masked(call: Call, at: int) -> Equation:
    """One value wherever a mask, over the dims from ``at`` on, says so."""
    held = letters(call.shapes[0])
    value: Dims = ((),) * len(call.shapes[2])
    return Equation(
        inputs=(held, held[at : at + len(call.shapes[1])], value),
        outputs=(held,),
        sizes=sizes(call.shapes[0]),
    )


RULES = {
    "aten.scatter.value": _scatter,
    "aten.scatter.src": _scatter,
    "aten.scatter_add.default": _scatter_add,
    "aten.index_add.default": _along(linear=True),
    "aten.index_copy.default": _along(linear=False),
    "aten.index_put.default": _index_put,
}
