"""Runs the graph of one ``cp`` rank on real tensors, all ranks of it in turn at every call.

Ranks share one autograd graph: an exchange reads the tensors of all of them, so that gradients of
the sum of what the ranks make of the loss are the model's if the graph is right.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from autoplan.codegen.sizes import local_arguments, local_target
from autoplan.sharding.context.rewrite import rank_graph
from autoplan.sharding.context.walk import token_layout
from autoplan.sharding.exchange import EXCHANGE, Exchange, exchange_of
from autoplan.sharding.placement import Partial
from autoplan.sharding.rules.attention import CAUSAL_OF_ROWS
from autoplan.trace.graph import BatchInt, OpGraph, OpNode, Ref, TorchValue


def loss_of_ranks(
    graph: OpGraph, cp: int, tensors: dict[str, Tensor], inputs: dict[str, Tensor]
) -> Tensor:
    """The loss of ``cp`` ranks that have neighbouring shares of the tokens.

    Args:
        graph: the model's.
        tensors: parameters and buffers by qualified name.
        inputs: by name, at the batch of the graph.
    """
    layout = token_layout(graph, cp)
    of_rank = rank_graph(graph, layout, cp)
    values: dict[Ref, list[Tensor]] = {}
    for node in of_rank.nodes:
        if node.kind == "call":
            made = _called(graph, node, values, cp)
        else:
            made = [[_given(node, tensors, inputs)]] * cp
        for index, meta in enumerate(node.outputs):
            values[Ref(node.name, index)] = [each[index] for each in made]
            for each in made:
                assert tuple(each[index].shape) == meta.shape, node.name
    losses = values[of_rank.output]
    if layout.placements[graph.output] == Partial():
        return torch.stack(losses).sum()
    return losses[0]


def _given(node: OpNode, tensors: dict[str, Tensor], inputs: dict[str, Tensor]) -> Tensor:
    if node.kind == "constant":
        return torch.tensor(_plain(node.args[0]), dtype=getattr(torch, node.outputs[0].dtype))
    return (inputs if node.kind == "input" else tensors)[node.target]


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _called(
    graph: OpGraph, node: OpNode, values: dict[Ref, list[Tensor]], cp: int
) -> list[list[Tensor]]:
    if node.target == EXCHANGE:
        return [[each] for each in _exchanged(exchange_of(node), values[node.operands[0]], graph)]
    shapes = tuple(meta.shape for meta in node.outputs)
    written = replace(graph.by_name[node.name], args=node.args, kwargs=node.kwargs)
    args, kwargs = local_arguments(written, shapes, graph.batch)
    results = []
    for rank in range(cp):
        given = [_real(arg, values, rank) for arg in args]
        named = {name: _real(arg, values, rank) for name, arg in kwargs}
        result = _run(node.target, rank, given, named)
        results.append(list(result) if isinstance(result, (list, tuple)) else [result])
    return results


def _real(arg: Any, values: dict[Ref, list[Tensor]], rank: int) -> Any:
    if isinstance(arg, Ref):
        return values[arg][rank]
    if isinstance(arg, TorchValue):
        return torch.device("cpu") if arg.kind == "device" else getattr(torch, arg.name)
    return [_real(item, values, rank) for item in arg] if isinstance(arg, tuple) else arg


def _run(target: str, rank: int, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if target == CAUSAL_OF_ROWS:
        query, key, value = args[:3]
        rows, keys = query.shape[-2], key.shape[-2]
        seen = torch.ones(keys, keys, dtype=torch.bool).tril()[rank * rows : (rank + 1) * rows]
        named = {name: kwargs[name] for name in ("scale", "enable_gqa") if name in kwargs}
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(query, key, value, attn_mask=seen, **named)
    _, name, overload = local_target(target).split(".")
    return getattr(getattr(torch.ops.aten, name), overload)(*args, **kwargs)


def _exchanged(exchange: Exchange, read: list[Tensor], graph: OpGraph) -> list[Tensor]:
    parts, ranks = exchange.parts, exchange.ranks
    count = parts.at(graph.batch) if isinstance(parts, BatchInt) else parts
    if exchange.forward == "identity":
        return read
    if exchange.forward == "all_reduce":
        return [torch.stack(read).sum(0)] * ranks
    if exchange.forward == "mask":
        return [read[0], *(torch.zeros_like(each) for each in read[1:])]
    assert exchange.dim is not None
    if exchange.forward == "slice":
        return [_piece(whole, exchange.dim, count, rank, ranks) for rank, whole in enumerate(read)]
    assert exchange.forward == "all_gather"
    pieces = [each.chunk(count, exchange.dim) for each in read]
    whole = [piece for part in zip(*pieces, strict=True) for piece in part]
    return [torch.cat(whole, exchange.dim)] * ranks


def _piece(whole: Tensor, dim: int, parts: int, rank: int, ranks: int) -> Tensor:
    pieces = [part.chunk(ranks, dim)[rank] for part in whole.chunk(parts, dim)]
    return torch.cat(pieces, dim)
