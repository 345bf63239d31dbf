"""Operators under other names, and some that hide the samples, as those that rules know.

    multiply(x, y)            ->  mul(x, y)
    x.type_as(y)              ->  x.to(the type of y)
    tile(x, counts)           ->  repeat(x, a count for every dim)
    squeeze(x)                ->  squeeze(x, the dims of size one)
    x[arange(samples)]        ->  x
    x[arange(samples), j]     ->  gather(x, 1, j), one row of every sample

The rules split what they can name. A squeeze without dims would take another one where a rank holds
a single sample; and rows that are counted off by sample are other rows in a part of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from autoplan.trace.rewriting import Writer

_aten = torch.ops.aten
_OVERLOADS = ("default", "Tensor", "Scalar", "Tensor_mode")
_NAMES = {
    "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan",
    "arctan2": "atan2", "arctanh": "atanh", "concat": "cat", "concatenate": "cat",
    "divide": "div", "ger": "outer", "greater": "gt", "greater_equal": "ge", "less": "lt",
    "less_equal": "le", "linalg_matmul": "matmul", "multiply": "mul", "negative": "neg",
    "not_equal": "ne", "special_erf": "erf", "special_erfc": "erfc", "special_exp2": "exp2",
    "special_expit": "sigmoid", "special_expm1": "expm1", "special_log1p": "log1p",
    "special_logit": "logit", "special_logsumexp": "logsumexp", "special_sinc": "sinc",
    "subtract": "sub", "true_divide": "div",
}  # fmt: skip
_ALIASES: dict[Any, Any] = {
    _aten.moveaxis.int: _aten.movedim.int,
    _aten.special_log_softmax.default: _aten.log_softmax.int,
    _aten.special_softmax.default: _aten.softmax.int,
    _aten.swapdims.default: _aten.transpose.int,
    **{
        getattr(getattr(_aten, name), overload): getattr(getattr(_aten, plain), overload)
        for name, plain in _NAMES.items()
        for overload in _OVERLOADS
        if hasattr(getattr(_aten, name), overload) and hasattr(getattr(_aten, plain), overload)
    },
}
_NUMBERS = (torch.int64, torch.int32)


def write_known_operators(graph: fx.Graph) -> None:
    """Rewrites calls of an exported graph in place."""
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in _ALIASES:
            node.target = _ALIASES[node.target]
        elif node.target in _REWRITTEN:
            _REWRITTEN[node.target](node)
        elif node.target is _aten.index.Tensor and _picks_by_sample(node):
            _gather(graph, node)


def _cast(node: fx.Node) -> None:
    node.target, node.args = _aten.to.dtype, (node.args[0], node.meta["val"].dtype)


def _repeat(node: fx.Node) -> None:
    operand: Any = node.args[0]
    counts: Any = node.args[1]
    missing = operand.meta["val"].dim() - len(counts)
    node.target, node.args = _aten.repeat.default, (operand, [*[1] * missing, *counts])


def _squeeze_dims(node: fx.Node) -> None:
    operand: Any = node.args[0]
    ones = [dim for dim, size in enumerate(operand.meta["val"].shape) if size == 1]
    node.target, node.args = _aten.squeeze.dims, (operand, ones)


_REWRITTEN: dict[Any, Callable[[fx.Node], None]] = {
    _aten.squeeze.default: _squeeze_dims,
    _aten.tile.default: _repeat,
    _aten.type_as.default: _cast,
}


def _picks_by_sample(node: fx.Node) -> bool:
    """Whether the first dim is indexed by all of its numbers in order, and the next one or none."""
    table: Any = node.args[0]
    indices: Any = node.args[1]
    shape = table.meta["val"].shape[:1]
    counted, picked = indices[0], indices[1:]
    if None in indices or len(picked) > 1 or counted.target is not _aten.arange.default:
        return False
    values = [index.meta["val"] for index in picked]
    rows = all(value.dtype in _NUMBERS and value.shape == shape for value in values)
    return rows and counted.meta["val"].shape == shape


def _gather(graph: fx.Graph, node: fx.Node) -> None:
    call = Writer(graph, node)
    table: Any = node.args[0]
    indices: Any = node.args[1]
    if len(indices) == 1:
        call.put(table)
        return
    samples, rows, *rest = table.meta["val"].shape
    from_start = call(_aten.remainder.Scalar, indices[1], rows)
    column = call(_aten.view.default, from_start, [samples, *[1] * (1 + len(rest))])
    whole = call(_aten.expand.default, column, [samples, 1, *rest])
    found = call(_aten.gather.default, table, 1, whole)
    call.put(call(_aten.squeeze.dim, found, 1))
