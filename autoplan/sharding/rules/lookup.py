"""Reading elements of a tensor by index: dims that are not indexed are loops."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.sharding.equation import Dims, Equation, Shape
from autoplan.sharding.rules.base import (
    Call,
    aligned,
    broadcast_shape,
    letters,
    names,
    sizes,
)

_NUMBERS = ("int64", "int32")


def gather(call: Call) -> Equation:
    """Dims that the index runs over in full are loops of table and index alike.

    Along the dim that is gathered, the index has a loop of its own.
    """
    table, index = call.shapes[:2]
    at = call.dim(1)
    shared = [dim for dim in range(len(table)) if dim != at and table[dim] == index[dim]]
    rows = tuple((f"d{dim}",) if dim in shared else (f"t{dim}",) for dim in range(len(table)))
    picks = tuple((f"d{dim}",) if dim in shared else (f"i{dim}",) for dim in range(len(index)))
    extents = {
        **{letter: size for (letter,), size in zip(rows, table, strict=True)},
        **{letter: size for (letter,), size in zip(picks, index, strict=True)},
    }
    return Equation(
        inputs=(rows, picks),
        outputs=(picks,),
        sizes=extents,
        whole=frozenset(extents) - names(shared) - {f"i{at}"},
        linear=(frozenset({0}),),
    )


def _index_select(call: Call) -> Equation:
    return _selected(call, call.dim(1))


def _selected(call: Call, at: int) -> Equation:
    """The rows of dim ``at`` that the second operand numbers."""
    table, index = call.shapes
    return indexed(table, [at], (index,))


def _index(call: Call) -> Equation | None:
    """A mask makes sizes that depend on the data, so such a call runs whole."""
    if any(index.dtype not in _NUMBERS for index in call.inputs[1:]):
        return None
    named = [dim for dim, index in enumerate(call.argument(1, "indices")) if index is not None]
    return indexed(call.shapes[0], named, call.shapes[1:])


def indexed(table: Shape, named: Sequence[int], indices: Sequence[Shape]) -> Equation:
    """The equation of reading a table at indices for its dims ``named``.

    These stay whole; all others, and the indices' own dims, are loops. In the result the indices'
    dims come where the named ones were if those are neighbours, else first.
    """
    at = named[0] if named[-1] - named[0] < len(named) else 0
    picked = broadcast_shape(indices)
    held = letters(table)
    kept = tuple(letter for dim, letter in enumerate(held) if dim not in named)
    picks: Dims = tuple((f"i{n}",) if size != 1 else () for n, size in enumerate(picked))
    return Equation(
        inputs=(
            tuple((f"v{dim}",) if dim in named else letter for dim, letter in enumerate(held)),
            *(aligned(picks, picked, shape) for shape in indices),
        ),
        outputs=((*kept[:at], *picks, *kept[at:]),),
        sizes={
            **sizes(table),
            **{f"v{dim}": table[dim] for dim in named},
            **{f"i{n}": size for n, size in enumerate(picked)},
        },
        whole=frozenset(f"v{dim}" for dim in named),
        linear=(frozenset({0}),),
    )


def _one_hot(call: Call) -> Equation:
    ids = letters(call.shapes[0])
    return Equation(
        inputs=(ids,),
        outputs=((*ids, ("v",)),),
        sizes={**sizes(call.shapes[0]), "v": call.outputs[0].shape[-1]},
        whole=frozenset({"v"}),
    )


RULES = {
    "aten.one_hot.default": _one_hot,
    "aten.gather.default": gather,
    "aten.index.Tensor": _index,
    "aten.index_select.default": _index_select,
}
