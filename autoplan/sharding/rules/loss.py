"""Losses: sums over samples are partial, classes stay whole or take a stand-in.

A mean over the call is not a sum of the shards' means, so such a call runs whole.
"""

from __future__ import annotations

from dataclasses import replace

from autoplan.sharding.equation import Dims, Equation, LocalOp, Shape
from autoplan.sharding.rules.base import Call, OpRule, broadcast, letters, sizes

_NONE, _MEAN, _SUM = 0, 1, 2


def _reduction(call: Call, index: int) -> int:
    return call.argument(index, "reduction", _MEAN)


def _classes(call: Call, index: int) -> Equation | None:
    """Scores (n, classes, ...) against class numbers (n, ...) or class probabilities."""
    scores, target = call.shapes[:2]
    reduction = _reduction(call, index)
    if reduction == _MEAN:
        return None
    dims: Dims = ((),) if not scores else letters(scores)
    at = 1 if len(scores) > 1 else 0
    dims = (*dims[:at], ("c",), *dims[at + 1 :])
    samples = (*dims[:at], *dims[at + 1 :])
    return Equation(
        inputs=(dims, dims if target == scores else samples, *[(("c",),)] * len(call.inputs[2:])),
        outputs=(samples if reduction == _NONE else (),),
        sizes={**sizes(scores), "c": scores[at]},
        whole=frozenset({"c"}),
    )


def _cross_entropy(call: Call) -> Equation | None:
    made = _classes(call, 3)
    if made is None or not _is_plain(call):
        return made
    stand_in = {"c": LocalOp("vocab_parallel_cross_entropy", completes=True)}
    return replace(made, whole=frozenset(), local_ops=stand_in)


def _is_plain(call: Call) -> bool:
    """Summed scores (n, classes) against class numbers: what the stand-in computes."""
    return (
        len(call.inputs) == 2
        and len(call.shapes[0]) == 2
        and len(call.shapes[1]) == 1
        and _reduction(call, 3) == _SUM
        and call.argument(5, "label_smoothing", 0.0) == 0.0
    )


def _nll(call: Call) -> Equation | None:
    return _classes(call, 3)


def _elementwise(call: Call) -> Equation | None:
    reduction = _reduction(call, 2)
    if reduction == _MEAN:
        return None
    result = _broadcast_shape(call.shapes)
    return Equation(
        inputs=tuple(broadcast(shape, result) for shape in call.shapes),
        outputs=(letters(result) if reduction == _NONE else (),),
        sizes=sizes(result),
    )


def _broadcast_shape(shapes: tuple[Shape, ...]) -> Shape:
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(max(column) for column in zip(*padded, strict=True))


RULES = {
    "aten.cross_entropy_loss.default": OpRule(equation=_cross_entropy),
    "aten.nll_loss.default": OpRule(equation=_nll),
    "aten.nll_loss_nd.default": OpRule(equation=_nll),
    "aten.mse_loss.default": OpRule(equation=_elementwise),
    "aten.smooth_l1_loss.default": OpRule(equation=_elementwise),
    "aten.huber_loss.default": OpRule(equation=_elementwise),
}
