"""Operators that show the same elements under other dims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autoplan.sharding.equation import Dims, Equation, Shape
from autoplan.sharding.factors import view_equation
from autoplan.sharding.rules.base import Call, OpRule, broadcast, letters, names, sizes
from autoplan.trace.graph import Arg

_LINEAR = (frozenset({0}),)


def _view(call: Call) -> Equation | None:
    return view_equation(call.shapes[0], call.outputs[0].shape)


def _unflatten_sizes(call: Call, local: Sequence[Shape]) -> Mapping[int, Arg]:
    start, count = call.dim(1), len(call.argument(2, "sizes"))
    return {2: tuple(local[0][start : start + count])}


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


def _t(call: Call) -> Equation:
    return _reorder(call, list(reversed(range(len(call.shapes[0])))))


def _expand(call: Call) -> Equation:
    result = call.outputs[0].shape
    return Equation(
        inputs=tuple(broadcast(shape, result) for shape in call.shapes),
        outputs=(letters(result),),
        sizes=sizes(result),
        linear=_LINEAR,
    )


def _repeat(call: Call) -> Equation:
    """Every dim is (repetition, index); only a dim of size one lets its repetitions be split."""
    source, result = call.shapes[0], call.outputs[0].shape
    source = (1,) * (len(result) - len(source)) + source
    counts = {
        f"r{dim}": out // size for dim, (out, size) in enumerate(zip(result, source, strict=True))
    }
    dims: Dims = tuple(
        tuple(
            letter
            for letter, extent in ((f"r{dim}", counts[f"r{dim}"]), (f"d{dim}", size))
            if extent != 1
        )
        for dim, size in enumerate(source)
    )
    return Equation(
        inputs=(letters(source)[len(source) - len(call.shapes[0]) :],),
        outputs=(dims,),
        sizes={**counts, **sizes(source)},
        whole=frozenset(f"r{dim}" for dim, size in enumerate(source) if size != 1),
        linear=_LINEAR,
    )


def _repeat_counts(call: Call, local: Sequence[Shape]) -> Mapping[int, Arg]:
    counts = call.argument(1, "repeats")
    source = (1,) * (len(counts) - len(call.shapes[0])) + call.shapes[0]
    return {
        1: tuple(
            out if size == 1 else count
            for count, size, out in zip(counts, source, local[0], strict=True)
        )
    }


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
    "aten.view.default": OpRule(equation=_view, size_argument=1),
    "aten.reshape.default": OpRule(equation=_view, size_argument=1),
    "aten._unsafe_view.default": OpRule(equation=_view, size_argument=1),
    "aten.flatten.using_ints": OpRule(equation=_view),
    "aten.unflatten.int": OpRule(equation=_view, local_arguments=_unflatten_sizes),
    "aten.unsqueeze.default": OpRule(equation=_view),
    "aten.squeeze.default": OpRule(equation=_squeeze),
    "aten.squeeze.dim": OpRule(equation=_squeeze),
    "aten.squeeze.dims": OpRule(equation=_squeeze),
    "aten.permute.default": OpRule(equation=_permute),
    "aten.transpose.int": OpRule(equation=_transpose),
    "aten.t.default": OpRule(equation=_t),
    "aten.expand.default": OpRule(equation=_expand, size_argument=1),
    "aten.repeat.default": OpRule(equation=_repeat, local_arguments=_repeat_counts),
    "aten.tril.default": OpRule(equation=_triangle),
    "aten.triu.default": OpRule(equation=_triangle),
}
