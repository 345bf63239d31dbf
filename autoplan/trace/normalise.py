"""Writes means over the batch as a sum and a division, so that only linear sums cross the batch.

    mean(x)                     ->  sum(x) / (elements)
    mse_loss(x, y) and its kin  ->  mse_loss(x, y, reduction=sum) / (elements)
    cross_entropy(x, target)    ->  cross_entropy(x, target, reduction=sum) / max(1, valid targets)

"elements" follows the batch; the valid targets are those different from ``ignore_index``. With no
valid target the loss is 0. Means over other dims stay, and so do weighted cross entropies, whose
denominator is no count.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from autoplan.trace.torch_private import schema_arguments

_aten = torch.ops.aten
_MEAN, _SUM = 1, 2
_ELEMENTWISE_LOSSES = {
    _aten.mse_loss.default,
    _aten.l1_loss.default,
    _aten.smooth_l1_loss.default,
    _aten.huber_loss.default,
    _aten.binary_cross_entropy.default,
    _aten.binary_cross_entropy_with_logits.default,
    _aten.soft_margin_loss.default,
}
_CLASS_LOSSES = {_aten.cross_entropy_loss.default, _aten.nll_loss_nd.default}


def normalise_batch_means(graph: fx.Graph) -> None:
    """Rewrites ``graph`` in place; nodes carry ``meta["batch_dims"]``, one tuple per output."""
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in (_aten.mean.default, _aten.mean.dim):
            _rewrite_mean(graph, node)
        elif node.target in _ELEMENTWISE_LOSSES:
            _rewrite_elementwise_loss(graph, node)
        elif node.target in _CLASS_LOSSES:
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
            total = _call(graph, node, _aten.sum.default, (operand,), dtype)
        else:
            args = (operand, dims, given["keepdim"])
            total = _call(graph, node, _aten.sum.dim_IntList, args, dtype)
        _replace(graph, node, _call(graph, node, _aten.div.Scalar, (total, count)))


def _rewrite_elementwise_loss(graph: fx.Graph, node: fx.Node) -> None:
    given = arguments(node)
    if given["reduction"] != _MEAN or not _reads_batch(node):
        return
    shapes = [given[name].meta["val"].shape for name in ("self", "target")]
    count = math.prod(torch.broadcast_shapes(*shapes))
    with graph.inserting_before(node):
        total = _with_sum(graph, node, given)
        _replace(graph, node, _call(graph, node, _aten.div.Scalar, (total, count)))


def _rewrite_class_loss(graph: fx.Graph, node: fx.Node) -> None:
    given = arguments(node)
    if given["reduction"] != _MEAN or given["weight"] is not None or not _reads_batch(node):
        return
    scores, target = given["self"], given["target"]
    with graph.inserting_before(node):
        total = _with_sum(graph, node, given)
        if target.meta["val"].is_floating_point():
            shape = scores.meta["val"].shape
            count = scores.meta["val"].numel() // shape[1 if len(shape) > 1 else 0]
            mean = _call(graph, node, _aten.div.Scalar, (total, count))
        else:
            valid = _call(graph, node, _aten.ne.Scalar, (target, given["ignore_index"]))
            count = _call(graph, node, _aten.sum.default, (valid,))
            count = _call(graph, node, _aten.clamp_min.default, (count, 1))
            mean = _call(graph, node, _aten.div.Tensor, (total, count))
        _replace(graph, node, mean)


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


def _with_sum(graph: fx.Graph, node: fx.Node, given: dict[str, Any]) -> fx.Node:
    schema = schema_arguments(node)
    values = {**given, "reduction": _SUM}
    args = tuple(values[argument.name] for argument in schema if not argument.kwarg_only)
    return _call(graph, node, node.target, args)


def _call(graph: fx.Graph, origin: fx.Node, target, args: tuple, kwargs=None) -> fx.Node:
    """Inserts a call with the origin's module and source line, and computes its metadata."""
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
