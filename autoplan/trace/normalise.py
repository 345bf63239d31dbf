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
        if node.target in (_aten.mean.default, _aten.mean.dim):
            _rewrite_mean(graph, node)
        elif node.target in LOSSES:
            _rewrite_loss(graph, node)
        elif node.target in CLASS_LOSSES:
            _rewrite_class_loss(graph, node)


def _rewrite_mean(graph: fx.Graph, node: fx.Node) -> None:
    operand: Any = node.args[0]
    shape = operand.meta["val"].shape
    given = arguments(node)
    dims = given.get("dim") or list(range(len(shape)))
    dims = [dim % len(shape) for dim in dims] if shape else []
    if not set(dims) & set(operand.meta["batch_dims"][0]):
        return
    count = math.prod(shape[dim] for dim in dims)
    dtype = {} if given["dtype"] is None else {"dtype": given["dtype"]}
    with graph.inserting_before(node):
        if node.target is _aten.mean.default:
            total = inserted(graph, node, _aten.sum.default, (operand,), dtype)
        else:
            args = (operand, dims, given["keepdim"])
            total = inserted(graph, node, _aten.sum.dim_IntList, args, dtype)
        _replace(graph, node, inserted(graph, node, _aten.div.Scalar, (total, count)))


def _rewrite_loss(graph: fx.Graph, node: fx.Node) -> None:
    given = arguments(node)
    if given["reduction"] != MEAN or not _reads_batch(node):
        return
    with graph.inserting_before(node):
        unreduced = _with_reduction(graph, node, given, NONE)
        count = unreduced.meta["val"].numel()
        graph.erase_node(unreduced)
        total = _with_reduction(graph, node, given, SUM)
        _replace(graph, node, inserted(graph, node, _aten.div.Scalar, (total, count)))


def _rewrite_class_loss(graph: fx.Graph, node: fx.Node) -> None:
    given = arguments(node)
    if given["reduction"] != MEAN or not _reads_batch(node):
        return
    scores, target = given["self"], given["target"]
    with graph.inserting_before(node):
        total = _with_reduction(graph, node, given, SUM)
        if target.meta["val"].is_floating_point():
            shape = scores.meta["val"].shape
            count = scores.meta["val"].numel() // shape[1 if len(shape) > 1 else 0]
            mean = inserted(graph, node, _aten.div.Scalar, (total, count))
        else:
            mean = inserted(graph, node, _aten.div.Tensor, (total, _valid(graph, node, given)))
        _replace(graph, node, mean)


def _valid(graph: fx.Graph, node: fx.Node, given: dict[str, Any]) -> fx.Node:
    """The number of valid targets of a loss of classes, or the sum of their weights."""
    target, weight = given["target"], given["weight"]
    valid = inserted(graph, node, _aten.ne.Scalar, (target, given["ignore_index"]))
    if weight is None:
        count = inserted(graph, node, _aten.sum.default, (valid,))
        return inserted(graph, node, _aten.clamp_min.default, (count, 1))
    named = inserted(graph, node, _aten.mul.Tensor, (target, valid))
    weights = inserted(graph, node, _aten.index.Tensor, (weight, [named]))
    counted = inserted(graph, node, _aten.mul.Tensor, (weights, valid))
    return inserted(graph, node, _aten.sum.default, (counted,))


def arguments(node: fx.Node) -> dict[str, Any]:
    """All arguments of a call by the names of the operator's schema, defaults filled in."""
    schema = schema_arguments(node)
    given = dict(zip((argument.name for argument in schema), node.args, strict=False))
    given.update(node.kwargs)
    for argument in schema:
        given.setdefault(argument.name, argument.default_value)
    return given


def _reads_batch(node: fx.Node) -> bool:
    return any(any(operand.meta["batch_dims"]) for operand in node.all_input_nodes)


def _with_reduction(
    graph: fx.Graph, node: fx.Node, given: dict[str, Any], reduction: int
) -> fx.Node:
    schema = schema_arguments(node)
    values = {**given, "reduction": reduction}
    args = tuple(values[argument.name] for argument in schema if not argument.kwarg_only)
    kwargs = {a.name: values[a.name] for a in schema if a.kwarg_only and a.name in node.kwargs}
    return inserted(graph, node, node.target, args, kwargs)


def inserted(graph: fx.Graph, origin: fx.Node, target, args: tuple, kwargs=None) -> fx.Node:
    """A new call with the origin's module and source line, and computes its metadata."""
    node = graph.call_function(target, args, kwargs or {})
    values = fx.map_arg(args, lambda operand: operand.meta["val"])
    mode = origin.meta["val"].fake_mode
    with mode, torch.no_grad():
        result = target(*values, **(kwargs or {}))
    node.meta = {**origin.meta, "val": result}
    return node


def _replace(graph: fx.Graph, old: fx.Node, new: fx.Node) -> None:
    old.replace_all_uses_with(new)
    graph.erase_node(old)
