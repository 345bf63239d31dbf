"""Arithmetic in place (``y += x``) as arithmetic: ``y = y + x``, where nothing can tell them apart.

What is written over must be a value that the graph computes, and afterwards be read by that name
only: not through a view made before, not as an input, a parameter or a buffer, not across the
border of a repeated block. Type, shape and strides must be those of the result out of place. All
other operators in place stay, and are refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from autoplan.trace.repeat_ops import BLOCK, MARK
from autoplan.trace.torch_private import OpOverload, storage_id, tree_leaves

_aten = torch.ops.aten
_OUT_OF_PLACE: Mapping[Any, Any] = {
    _aten.add_.Tensor: _aten.add.Tensor,
    _aten.sub_.Tensor: _aten.sub.Tensor,
    _aten.mul_.Tensor: _aten.mul.Tensor,
    _aten.div_.Tensor: _aten.div.Tensor,
    _aten.pow_.Scalar: _aten.pow.Tensor_Scalar,
    _aten.zero_.default: _aten.zeros_like.default,
    _aten.fill_.Scalar: _aten.full_like.default,
    _aten.scatter_.value: _aten.scatter.value,
    _aten.scatter_.src: _aten.scatter.src,
    _aten.masked_fill_.Scalar: _aten.masked_fill.Scalar,
    _aten.masked_fill_.Tensor: _aten.masked_fill.Tensor,
    **{
        getattr(_aten, f"{name}_").default: getattr(_aten, name).default
        for name in (
            "abs", "addcmul", "clamp", "clamp_max", "clamp_min", "elu", "exp", "gelu",
            "hardsigmoid", "hardswish", "hardtanh", "index_add", "leaky_relu", "mish", "neg",
            "relu", "relu6", "scatter_add", "selu", "sigmoid", "silu", "sqrt", "tanh",
        )
    },
}  # fmt: skip


def write_out_of_place(graph: fx.Graph) -> None:
    """Rewrites in-place arithmetic of an exported graph, whose ``no_grad`` regions are nested."""
    nodes = [node for node in graph.nodes if node.target in _OUT_OF_PLACE]
    if not nodes:
        return
    order = {node: index for index, node in enumerate(graph.nodes)}
    regions = _regions(graph)
    for node in nodes:
        written: Any = node.args[0]
        if not isinstance(written, fx.Node) or not _same_result(node):
            continue
        aliases = [other for other in graph.nodes if _shares(other, written)]
        before = [other for other in aliases if order[other] < order[node]]
        if all(_is_private(other, written, node, order, regions) for other in before):
            node.target = _OUT_OF_PLACE[node.target]
            written.replace_all_uses_with(
                node, delete_user_cb=lambda user, at=order[node]: order[user] > at
            )


def _is_private(
    alias: fx.Node,
    written: fx.Node,
    node: fx.Node,
    order: Mapping[fx.Node, int],
    regions: Mapping[fx.Node, str],
) -> bool:
    """Whether nothing sees through ``alias`` that ``node`` writes over ``written``."""
    if not _is_plain(alias) or regions[alias] != regions[node]:
        return False
    earlier = [user for user in alias.users if order[user] < order[node]]
    later = any(order[user] > order[node] for user in alias.users)
    return all(map(_is_plain, earlier)) and (alias is written or not later)


def _is_plain(node: fx.Node) -> bool:
    """A call of an operator, not a value from outside nor a block or region of operators."""
    return node.op == "call_function" and (
        node.target is operator.getitem
        or (isinstance(node.target, OpOverload) and node.target not in (BLOCK, MARK))
    )


def _regions(graph: fx.Graph) -> dict[fx.Node, str]:
    """The traced block in which each node lies, '' for none."""
    current, found = "", {}
    for node in graph.nodes:
        if node.target is MARK:
            what, _, key = node.args[0].partition(":")
            current = key if what == "enter" else ""
        found[node] = current
    return found


def _shares(node: fx.Node, other: fx.Node) -> bool:
    held = storage_id(other.meta["val"])
    return any(
        isinstance(value, torch.Tensor) and storage_id(value) == held
        for value in tree_leaves(node.meta.get("val"))
    )


def _same_result(node: fx.Node) -> bool:
    """Whether the operator out of place gives what was there: type, shape and strides."""
    given: Any = fx.map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
    args, kwargs = given
    written = args[0]
    pure: Callable[..., torch.Tensor] = _OUT_OF_PLACE[node.target]
    with written.fake_mode, torch.no_grad():
        made = pure(*args, **kwargs)
    return (made.dtype, made.shape, made.stride()) == (
        written.dtype, written.shape, written.stride()
    )  # fmt: skip
