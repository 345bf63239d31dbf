"""Writes attention that drops scores as the operators that it is made of.

Fused kernels draw their masks inside, by the place of an element on one device. Dropout that is the
same under every plan needs the probabilities, so attention with dropout runs unfused: both
products, the masks, a softmax and a dropout, with the time and memory of each. A query whose keys
are all hidden attends to nothing, as in the fused kernels.

A mask that is added to the scores has the type of the queries, which all kernels want: one that
``nn.Transformer`` makes is in float32 whatever the model's precision.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from autoplan.trace.rewriting import Writer, arguments

_aten = torch.ops.aten


def write_out_attention(graph: fx.Graph, *, every: bool) -> None:
    """Rewrites a graph in place; grouped queries stay as they are.

    Args:
        every: whether attention without dropout is written out as well.
    """
    for node in list(graph.nodes):
        if node.target is _aten.scaled_dot_product_attention.default:
            _cast_mask(graph, node)
            given = arguments(node)
            dropping = given["dropout_p"] != 0
            if (dropping or every) and not given["enable_gqa"]:
                call = Writer(graph, node)
                call.put(_unfused(call, given))


def _cast_mask(graph: fx.Graph, node: fx.Node) -> None:
    given = arguments(node)
    mask, dtype = given["attn_mask"], given["query"].meta["val"].dtype
    if mask is not None and mask.meta["val"].dtype not in (torch.bool, dtype):
        node.replace_input_with(mask, Writer(graph, node)(_aten.to.dtype, mask, dtype))


def _unfused(call: Writer, given: dict[str, Any]) -> fx.Node:
    query, key, value, mask = (given[name] for name in ("query", "key", "value", "attn_mask"))
    sizes = query.meta["val"].shape[-2], key.meta["val"].shape[-2]
    scale = given["scale"]
    if scale is None:
        scale = 1 / math.sqrt(query.meta["val"].shape[-1])
    scaled = call(_aten.mul.Tensor, query, scale)
    scores = call(_aten.matmul.default, scaled, call(_aten.transpose.int, key, -2, -1))
    hidden = None
    if given["is_causal"]:
        hidden = _later(call, query.meta["val"].device, *sizes)
    elif mask is not None and mask.meta["val"].dtype == torch.bool:
        hidden = call(_aten.logical_not.default, mask)
    elif mask is not None:
        scores = call(_aten.add.Tensor, scores, mask)
    if hidden is not None:
        scores = call(_aten.masked_fill.Scalar, scores, hidden, -math.inf)
    softmax = _aten.softmax.int if mask is None else _aten._safe_softmax.default
    shares = call(softmax, scores, -1)
    if given["dropout_p"] != 0:
        shares = call(_aten.dropout.default, shares, given["dropout_p"], True)
    return call(_aten.matmul.default, shares, value)


def _later(call: Writer, device: torch.device, queries: int, keys: int) -> fx.Node:
    """Where a key stands behind the query."""
    query = call(_aten.arange.default, queries, device=device)
    key = call(_aten.arange.default, keys, device=device)
    return call(_aten.gt.Tensor, key, call(_aten.unsqueeze.default, query, 1))
