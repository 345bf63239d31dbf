"""Reductions and operators along a dim. A sum over a split dim is partial; all else stays whole."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.sharding.equation import Equation, Shape
from autoplan.sharding.rules.base import (
    Call,
    Rule,
    broadcast,
    broadcast_shape,
    letters,
    names,
    sizes,
)

_LINEAR = (frozenset({0}),)


def _reduced(call: Call, index: int | None) -> list[int]:
    """The reduced dims: those that argument ``index`` names, or all."""
    rank = len(call.shapes[0])
    named = None if index is None else call.argument(index, "dim")
    if isinstance(named, int):
        named = (named,)
    return [dim % rank for dim in named] if named and rank else list(range(rank))


def _reduce(call: Call, dims: Sequence[int], *, summed: bool, linear: bool) -> Equation:
    shape = call.shapes[0]
    held = letters(shape)
    if len(call.outputs[0].shape) == len(shape):
        result = tuple(() if dim in dims else letter for dim, letter in enumerate(held))
    else:
        result = tuple(letter for dim, letter in enumerate(held) if dim not in dims)
    return Equation(
        inputs=(held,),
        outputs=(result,) * len(call.outputs),
        sizes=sizes(shape),
        whole=frozenset() if summed else names(dims),
        linear=_LINEAR if linear else (),
    )


def _reduction(index: int | None, *, summed: bool = False, linear: bool = False) -> Rule:
    """Rule of a reduction whose dims are argument ``index``, or all dims."""

    def equation(call: Call) -> Equation:
        return _reduce(call, _reduced(call, index), summed=summed, linear=linear)

    return equation


def _along(index: int, *, linear: bool = False) -> Rule:
    """Rule of an operator that keeps the shape and works along the dim of argument ``index``."""

    def equation(call: Call) -> Equation:
        shape = call.shapes[0]
        return Equation(
            inputs=(letters(shape),),
            outputs=(letters(shape),) * len(call.outputs),
            sizes=sizes(shape),
            whole=names([call.dim(index, default=-1)]),
            linear=_LINEAR if linear else (),
        )

    return equation


def _topk(call: Call) -> Equation | None:
    """The dim that is searched has another size afterwards."""
    shape, found = call.shapes[0], call.outputs[0].shape
    if not shape:
        return _along(2)(call)
    at = call.dim(2, default=-1)
    held = letters(shape)
    result = (*held[:at], ("k",), *held[at + 1 :])
    return Equation(
        inputs=(held,),
        outputs=(result, result),
        sizes={**sizes(shape), "k": found[at]},
        whole=names([at]) | {"k"},
    )


def _compared(call: Call, at: int, result: Shape) -> Equation:
    """Vectors along a dim of two tensors, broadcast, each pair as one number."""
    dims = letters(result)
    kept = len(call.outputs[0].shape) == len(result)
    return Equation(
        inputs=tuple(broadcast(shape, result) for shape in call.shapes),
        outputs=((*dims[:at], *[()] * kept, *dims[at + 1 :]),),
        sizes=sizes(result),
        whole=names([at]),
    )


def _cosine(call: Call) -> Equation:
    result = broadcast_shape(call.shapes)
    return _compared(call, call.argument(2, "dim", 1) % len(result), result)


def _distance(call: Call) -> Equation:
    result = broadcast_shape(call.shapes)
    return _compared(call, len(result) - 1, result)


RULES = {
    "aten.sum.default": _reduction(None, summed=True, linear=True),
    "aten.sum.dim_IntList": _reduction(1, summed=True, linear=True),
    "aten.mean.default": _reduction(None, linear=True),
    "aten.mean.dim": _reduction(1, linear=True),
    "aten.amax.default": _reduction(1),
    "aten.amin.default": _reduction(1),
    "aten.argmax.default": _reduction(1),
    "aten.argmin.default": _reduction(1),
    "aten.max.default": _reduction(None),
    "aten.max.dim": _reduction(1),
    "aten.min.default": _reduction(None),
    "aten.min.dim": _reduction(1),
    "aten.any.default": _reduction(None),
    "aten.any.dim": _reduction(1),
    "aten.all.default": _reduction(None),
    "aten.all.dim": _reduction(1),
    "aten.logsumexp.default": _reduction(1),
    "aten.var.correction": _reduction(1),
    "aten.var.default": _reduction(None),
    "aten.var.dim": _reduction(1),
    "aten.std.correction": _reduction(1),
    "aten.std.default": _reduction(None),
    "aten.std.dim": _reduction(1),
    "aten.linalg_vector_norm.default": _reduction(2),
    "aten.linalg_norm.default": _reduction(2),
    "aten.cosine_similarity.default": _cosine,
    "aten.pairwise_distance.default": _distance,
    "aten.softmax.int": _along(1),
    "aten.log_softmax.int": _along(1),
    "aten._softmax.default": _along(1),
    "aten._safe_softmax.default": _along(1),
    "aten._log_softmax.default": _along(1),
    "aten.cumprod.default": _along(1),
    "aten.cummax.default": _along(1),
    "aten.cummin.default": _along(1),
    "aten.logcumsumexp.default": _along(1),
    "aten.argsort.default": _along(1),
    "aten.prod.default": _reduction(None),
    "aten.prod.dim_int": _reduction(1),
    "aten.median.dim": _reduction(1),
    "aten.var_mean.correction": _reduction(1),
    "aten.std_mean.correction": _reduction(1),
    "aten.var_mean.dim": _reduction(1),
    "aten.std_mean.dim": _reduction(1),
    "aten.cumsum.default": _along(1, linear=True),
    "aten.sort.default": _along(1),
    "aten.topk.default": _topk,
}
