"""Writes means over the batch as a sum and a division, so that only linear sums cross the batch.

    mean(x)                     ->  sum(x) / (elements)
    mse_loss(x, y) and its kin  ->  mse_loss(x, y, reduction=sum) / (elements)
    cross_entropy(x, target)    ->  cross_entropy(x, target, reduction=sum) / max(1, valid targets)

"elements", those that the loss has unreduced, follow the batch; the valid targets are those
different from ``ignore_index``. With no valid target the loss is 0. Where classes have weights, the
denominator is the sum of those of the valid targets. Means over other dims stay.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from autoplan.trace.rewriting import Writer, arguments
from autoplan.trace.torch_private import schema_arguments

_aten = torch.ops.aten
NONE, MEAN, SUM = 0, 1, 2
LOSSES = {
    _aten.mse_loss.default,
    _aten.l1_loss.default,
    _aten.smooth_l1_loss.default,
    _aten.huber_loss.default,
    _aten.binary_cross_entropy.default,
    _aten.binary_cross_entropy_with_logits.default,
    _aten.soft_margin_loss.default,
    _aten.kl_div.default,
    _aten.poisson_nll_loss.default,
    _aten.hinge_embedding_loss.default,
    _aten.margin_ranking_loss.default,
    _aten.cosine_embedding_loss.default,
    _aten.triplet_margin_loss.default,
    _aten.multi_margin_loss.default,
    _aten.multilabel_margin_loss.default,
}
CLASS_LOSSES = {_aten.cross_entropy_loss.default, _aten.nll_loss_nd.default}


def normalise_batch_means(graph: fx.Graph) -> None:
    """Rewrites ``graph`` in place; nodes carry ``meta["batch_dims"]``, one tuple per output."""
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        call = Writer(graph, node)
        if node.target in (_aten.mean.default, _aten.mean.dim):
            _rewrite_mean(call, node)
        elif node.target in LOSSES:
            _rewrite_loss(call, node)
        elif node.target in CLASS_LOSSES:
            _rewrite_class_loss(call, node)


def _rewrite_mean(call: Writer, node: fx.Node) -> None:
    operand: Any = node.args[0]
    shape = operand.meta["val"].shape
    given = arguments(node)
    dims = given.get("dim") or list(range(len(shape)))
    dims = [dim % len(shape) for dim in dims] if shape else []
    if not set(dims) & set(operand.meta["batch_dims"][0]):
        return
    count = math.prod(shape[dim] for dim in dims)
    dtype = {} if given["dtype"] is None else {"dtype": given["dtype"]}
    if node.target is _aten.mean.default:
        total = call(_aten.sum.default, operand, **dtype)
    else:
        total = call(_aten.sum.dim_IntList, operand, dims, given["keepdim"], **dtype)
    call.put(call(_aten.div.Scalar, total, count))


def _rewrite_loss(call: Writer, node: fx.Node) -> None:
    if arguments(node)["reduction"] != MEAN or not _reads_batch(node):
        return
    args, kwargs = _reduced_by(node, NONE)
    count = call.result_of(node.target, *args, **kwargs).numel()
    call.put(call(_aten.div.Scalar, _summed(call, node), count))


def _rewrite_class_loss(call: Writer, node: fx.Node) -> None:
    given = arguments(node)
    if given["reduction"] != MEAN or not _reads_batch(node):
        return
    scores, target = given["self"], given["target"]
    total = _summed(call, node)
    if target.meta["val"].is_floating_point():
        shape = scores.meta["val"].shape
        count = scores.meta["val"].numel() // shape[1 if len(shape) > 1 else 0]
        mean = call(_aten.div.Scalar, total, count)
    else:
        mean = call(_aten.div.Tensor, total, _valid(call, given))
    call.put(mean)


def _valid(call: Writer, given: dict[str, Any]) -> fx.Node:
    """The number of valid targets of a loss of classes, or the sum of their weights."""
    target, weight = given["target"], given["weight"]
    valid = call(_aten.ne.Scalar, target, given["ignore_index"])
    if weight is None:
        return call(_aten.clamp_min.default, call(_aten.sum.default, valid), 1)
    weights = call(_aten.index.Tensor, weight, [call(_aten.mul.Tensor, target, valid)])
    return call(_aten.sum.default, call(_aten.mul.Tensor, weights, valid))


def _reads_batch(node: fx.Node) -> bool:
    return any(any(operand.meta["batch_dims"]) for operand in node.all_input_nodes)


def _summed(call: Writer, node: fx.Node) -> fx.Node:
    args, kwargs = _reduced_by(node, SUM)
    return call(node.target, *args, **kwargs)


def _reduced_by(node: fx.Node, reduction: int) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a loss with another reduction."""
    schema = schema_arguments(node)
    values = {**arguments(node), "reduction": reduction}
    args = [values[argument.name] for argument in schema if not argument.kwarg_only]
    kwargs = {a.name: values[a.name] for a in schema if a.kwarg_only and a.name in node.kwargs}
    return args, kwargs
