"""Operators that show the same elements under other dims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autoplan.sharding.equation import Dims, Equation
from autoplan.sharding.factors import view_equation
from autoplan.sharding.rules.base import Call, broadcast, letters, names, sizes
from autoplan.trace.graph import BatchInt

_LINEAR = (frozenset({0}),)


def _view(call: Call) -> Equation | None:
    return view_equation(call.shapes[0], call.outputs[0].shape)


def _squeeze(call: Call) -> Equation | None:
    """A named dim that is larger than one stays, and would vanish where a rank holds one of it."""
    made = _view(call)
    rank = len(call.shapes[0])
    named = call.argument(1, "dim", tuple(range(rank)))
    dims = [dim % rank for dim in ((named,) if isinstance(named, int) else named)] if rank else []
    if made is None:
        return None
    kept = {letter for dim in dims for letter in made.inputs[0][dim]}
    return replace(made, whole=made.whole | kept)


def _reorder(call: Call, order: Sequence[int]) -> Equation:
    dims = letters(call.shapes[0])
    return Equation(
        inputs=(dims,),
        outputs=(tuple(dims[dim] for dim in order),),
        sizes=sizes(call.shapes[0]),
        linear=_LINEAR,
    )


def _permute(call: Call) -> Equation:
    rank = len(call.shapes[0])
    return _reorder(call, [dim % rank for dim in call.argument(1, "dims")])


def _transpose(call: Call) -> Equation:
    order = list(range(len(call.shapes[0])))
    first, second = call.dim(1, "dim0"), call.dim(2, "dim1")
    order[first], order[second] = order[second], order[first]
    return _reorder(call, order)


def _swapaxes(call: Call) -> Equation:
    order = list(range(len(call.shapes[0])))
    first, second = call.dim(1, "axis0"), call.dim(2, "axis1")
    order[first], order[second] = order[second], order[first]
    return _reorder(call, order)


def _movedim(call: Call) -> Equation:
    order = list(range(len(call.shapes[0])))
    source, destination = call.dim(1, "source"), call.dim(2, "destination")
    order.insert(destination, order.pop(source))
    return _reorder(call, order)


def _reverse(call: Call) -> Equation:
    return _reorder(call, list(reversed(range(len(call.shapes[0])))))


def _matrix_transpose(call: Call) -> Equation:
    lead = range(len(call.shapes[0]) - 2)
    return _reorder(call, [*lead, len(lead) + 1, len(lead)])


def _expand(call: Call) -> Equation:
    result = call.outputs[0].shape
    return Equation(
        inputs=tuple(broadcast(shape, result) for shape in call.shapes),
        outputs=(letters(result),),
        sizes=sizes(result),
        linear=_LINEAR,
    )


def _expand_as(call: Call) -> Equation:
    """The other operand lends its shape, so it is split as the result is."""
    result = call.outputs[0].shape
    return Equation(
        inputs=(broadcast(call.shapes[0], result), letters(result)),
        outputs=(letters(result),),
        sizes=sizes(result),
        linear=_LINEAR,
    )


def _view_as(call: Call) -> Equation | None:
    made = _view(call)
    return made and replace(made, inputs=(*made.inputs, *made.outputs))


def _broadcast_tensors(call: Call) -> Equation:
    result = call.outputs[0].shape
    return Equation(
        inputs=tuple(broadcast(shape, result) for shape in call.shapes),
        outputs=(letters(result),) * len(call.outputs),
        sizes=sizes(result),
        linear=(frozenset(range(len(call.inputs))),),
    )


def _repeat(call: Call) -> Equation:
    """Every dim is (repetition, index).

    Repetitions are loops where there is one index, and on the batch axes where they count samples.
    """
    result = call.outputs[0].shape
    source = (1,) * (len(result) - len(call.shapes[0])) + call.shapes[0]
    counts = {
        f"r{dim}": out // max(size, 1)
        for dim, (out, size) in enumerate(zip(result, source, strict=True))
    }
    given = call.argument(1, "repeats")
    by_sample = {f"r{dim}" for dim, count in enumerate(given) if isinstance(count, BatchInt)}
    dims: Dims = tuple(
        (*(() if counts[f"r{dim}"] == 1 else (f"r{dim}",)), *letter)
        for dim, letter in enumerate(letters(source))
    )
    return Equation(
        inputs=(letters(source)[len(source) - len(call.shapes[0]) :],),
        outputs=(dims,),
        sizes={**counts, **sizes(source)},
        whole=frozenset(f"r{dim}" for dim, size in enumerate(source) if size != 1) - by_sample,
        only_batch_axes=frozenset(by_sample),
        linear=_LINEAR,
    )


def _repeat_interleave(call: Call) -> Equation | None:
    """The dim becomes (index, repetition); with its new size stated it stays whole.

    Repetitions are loops on the batch axes where they count samples.
    """
    source, result = call.shapes[0], call.outputs[0].shape
    at = call.argument(2, "dim")
    if at is None or not source:
        return None
    at, stated = at % len(source), call.argument(3, "output_size") is not None
    dims, count = letters(source), result[at] // source[at]
    repeated = (*dims[at], "r") if count > 1 else dims[at]
    by_sample = frozenset({"r"} if isinstance(call.argument(1, "repeats"), BatchInt) else ())
    return Equation(
        inputs=(dims,),
        outputs=((*dims[:at], repeated, *dims[at + 1 :]),),
        sizes={**sizes(source), "r": count},
        whole=(frozenset({"r"}) - by_sample) | (names([at]) if stated else frozenset()),
        only_batch_axes=by_sample,
        linear=_LINEAR,
    )


def _triangle(call: Call) -> Equation:
    shape = call.shapes[0]
    return Equation(
        inputs=(letters(shape),),
        outputs=(letters(shape),),
        sizes=sizes(shape),
        whole=names(range(len(shape) - 2, len(shape))),
        linear=_LINEAR,
    )


RULES = {
    "aten.view.default": _view,
    "aten.reshape.default": _view,
    "aten._unsafe_view.default": _view,
    "aten.view_as.default": _view_as,
    "aten.reshape_as.default": _view_as,
    "aten.flatten.using_ints": _view,
    "aten.unflatten.int": _view,
    "aten.unsqueeze.default": _view,
    "aten.squeeze.default": _squeeze,
    "aten.squeeze.dim": _squeeze,
    "aten.squeeze.dims": _squeeze,
    "aten.permute.default": _permute,
    "aten.transpose.int": _transpose,
    "aten.swapaxes.default": _swapaxes,
    "aten.movedim.int": _movedim,
    "aten.t.default": _reverse,
    "aten.numpy_T.default": _reverse,
    "aten.mT.default": _matrix_transpose,
    "aten.expand.default": _expand,
    "aten.expand_as.default": _expand_as,
    "aten.broadcast_to.default": _expand,
    "aten.broadcast_tensors.default": _broadcast_tensors,
    "aten.repeat.default": _repeat,
    "aten.repeat_interleave.self_int": _repeat_interleave,
    "aten.tril.default": _triangle,
    "aten.triu.default": _triangle,
}
