"""Losses: sums over samples are partial, classes stay whole or take a stand-in.

A mean over the call is not a sum of the shards' means, so such a call runs whole.
"""

from __future__ import annotations

from dataclasses import replace

from autoplan.sharding.equation import Dims, Equation, LocalOp, equation
from autoplan.sharding.rules.base import (
    Call,
    Rule,
    broadcast,
    broadcast_shape,
    letters,
    names,
    sizes,
)

_NONE, _MEAN, _SUM = 0, 1, 2


def _reduction(call: Call, index: int) -> int:
    return call.argument(index, "reduction", _MEAN)


def _classes(call: Call) -> Equation:
    """Scores (n, classes, ...) against class numbers (n, ...) or class probabilities."""
    scores, target = call.shapes[:2]
    at = 1 if len(scores) > 1 else 0
    held = letters(scores)
    dims: Dims = (*held[:at], ("c",), *held[at + 1 :])
    samples = (*dims[:at], *dims[at + 1 :])
    reduction = _reduction(call, 3)
    extents = {**sizes(scores), "c": scores[at]}
    return Equation(
        inputs=(dims, dims if target == scores else samples, *[(("c",),)] * len(call.inputs[2:])),
        outputs=(samples if reduction == _NONE else (),),
        sizes=extents,
        whole=frozenset(extents) if reduction == _MEAN else frozenset({"c"}),
    )


def _cross_entropy(call: Call) -> Equation:
    """The stand-in takes class numbers, and no class weights."""
    made = _classes(call)
    if len(call.inputs) > 2 or call.shapes[0] == call.shapes[1]:
        return made
    stand_in = {"c": LocalOp("vocab_parallel_cross_entropy", completes=True)}
    return replace(made, whole=made.whole - {"c"}, local_ops=stand_in)


def _alignments(call: Call) -> Equation:
    """Losses of samples, which align their targets with all steps and classes."""
    return equation("t b c, b s, b, b -> b", call.shapes, call.output_shapes, whole="t c s")


def _margins(index: int) -> Rule:
    """Rule of a loss that compares the classes of a sample, the last dim, with one another."""

    def rule(call: Call) -> Equation | None:
        reduction = _reduction(call, index)
        if reduction == _MEAN:
            return None
        scores, target = call.shapes[:2]
        held = letters(scores)
        samples, classes = held[:-1], held[-1:]
        if target not in (scores, scores[:-1]):
            return None
        return Equation(
            inputs=(
                held,
                held if target == scores else samples,
                *[classes] * (len(call.inputs) - 2),
            ),
            outputs=(samples if reduction == _NONE else (),),
            sizes=sizes(scores),
            whole=names([len(scores) - 1]),
        )

    return rule


def _of_vectors(index: int, targets: int = 0) -> Rule:
    """Rule of a loss that compares vectors, the last dim; ``targets`` are given one for each."""

    def rule(call: Call) -> Equation | None:
        reduction = _reduction(call, index)
        if reduction == _MEAN:
            return None
        count = len(call.inputs) - targets
        result = broadcast_shape(call.shapes[:count])
        samples = result[:-1]
        return Equation(
            inputs=(
                *(broadcast(shape, result) for shape in call.shapes[:count]),
                *(broadcast(shape, samples) for shape in call.shapes[count:]),
            ),
            outputs=(letters(samples) if reduction == _NONE else (),),
            sizes=sizes(result),
            whole=names([len(result) - 1]),
        )

    return rule


def _elementwise(index: int = 2) -> Rule:
    """Rule of a loss that compares element by element; its reduction is argument ``index``."""

    def rule(call: Call) -> Equation | None:
        reduction = _reduction(call, index)
        if reduction == _MEAN:
            return None
        result = broadcast_shape(call.shapes)
        return Equation(
            inputs=tuple(broadcast(shape, result) for shape in call.shapes),
            outputs=(letters(result) if reduction == _NONE else (),),
            sizes=sizes(result),
        )

    return rule


RULES = {
    "aten.cross_entropy_loss.default": _cross_entropy,
    "aten.nll_loss.default": _classes,
    "aten.nll_loss_nd.default": _classes,
    "aten.mse_loss.default": _elementwise(),
    "aten.smooth_l1_loss.default": _elementwise(),
    "aten.huber_loss.default": _elementwise(),
    "aten.l1_loss.default": _elementwise(),
    "aten.soft_margin_loss.default": _elementwise(),
    "aten.kl_div.default": _elementwise(),
    "autoplan.ctc_loss.default": _alignments,
    "aten.hinge_embedding_loss.default": _elementwise(3),
    "aten.margin_ranking_loss.default": _elementwise(4),
    "aten.poisson_nll_loss.default": _elementwise(5),
    "aten.cosine_embedding_loss.default": _of_vectors(4, targets=1),
    "aten.triplet_margin_loss.default": _of_vectors(7),
    "aten.multi_margin_loss.default": _margins(5),
    "aten.multilabel_margin_loss.default": _margins(2),
    "aten.binary_cross_entropy.default": _elementwise(3),
    "aten.binary_cross_entropy_with_logits.default": _elementwise(4),
}
