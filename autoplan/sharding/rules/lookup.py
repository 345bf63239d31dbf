"""Reading rows of a table by index, and writing them.

Splitting the rows of an embedding needs a stand-in: a rank answers for the rows that it has and
gives zero for the others, so that the sum over the ranks is the lookup.
"""

from __future__ import annotations

from dataclasses import replace

from autoplan.sharding.equation import Equation, LocalOp
from autoplan.sharding.rules.base import Call, letters, names, sizes

_NUMBERS = ("int64", "int32")


def _embedding(call: Call) -> Equation:
    """Gradients scaled by how often an index occurs in the call forbid splitting the indices."""
    table, index = call.shapes
    tokens = letters(index)
    by_frequency = call.argument(3, "scale_grad_by_freq", False)
    sparse = call.argument(4, "sparse", False)
    return Equation(
        inputs=((("v",), ("m",)), tokens),
        outputs=((*tokens, ("m",)),),
        sizes={**sizes(index), "v": table[0], "m": table[1]},
        whole=(names(range(len(index))) if by_frequency else frozenset())
        | ({"v"} if by_frequency or sparse or not index else set()),
        local_ops={"v": LocalOp("vocab_parallel_embedding")},
    )


def _gather(call: Call) -> Equation:
    """Only dims that the index runs over in full are loops of table and index alike."""
    table, index = call.shapes
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
        whole=frozenset(letter for letter in extents if letter not in names(shared)),
        linear=(frozenset({0}),),
    )


def _scatter(call: Call) -> Equation:
    """One number is written where a gather would read."""
    made = _gather(call)
    return replace(made, outputs=made.inputs[:1], linear=())


def _index_select(call: Call) -> Equation:
    return _selected(call, call.dim(1))


def _selected(call: Call, at: int) -> Equation:
    """The rows of dim ``at`` that the second operand, of any dims, numbers."""
    table, index = call.shapes
    rows = letters(table)
    picks = tuple((f"i{dim}",) if size != 1 else () for dim, size in enumerate(index))
    return Equation(
        inputs=((*rows[:at], ("v",), *rows[at + 1 :]), picks),
        outputs=((*rows[:at], *picks, *rows[at + 1 :]),),
        sizes={
            **sizes(table),
            "v": table[at],
            **{f"i{dim}": size for dim, size in enumerate(index)},
        },
        whole=frozenset({"v"}),
        linear=(frozenset({0}),),
    )


def _index(call: Call) -> Equation | None:
    """One tensor of numbers, along one dim; with several, or a mask, all ranks do the whole."""
    if len(call.inputs) != 2 or call.inputs[1].dtype not in _NUMBERS:
        return None
    at = next(dim for dim, index in enumerate(call.argument(1, "indices")) if index is not None)
    return _selected(call, at)


def _one_hot(call: Call) -> Equation:
    ids = letters(call.shapes[0])
    return Equation(
        inputs=(ids,),
        outputs=((*ids, ("v",)),),
        sizes={**sizes(call.shapes[0]), "v": call.outputs[0].shape[-1]},
        whole=frozenset({"v"}),
    )


RULES = {
    "aten.embedding.default": _embedding,
    "aten.one_hot.default": _one_hot,
    "aten.gather.default": _gather,
    "aten.index.Tensor": _index,
    "aten.index_select.default": _index_select,
    "aten.scatter.value": _scatter,
}
