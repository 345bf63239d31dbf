"""Inlines the nested graphs of ``torch.no_grad`` and disabled ``autocast`` regions.

Inside ``no_grad`` nothing is differentiated: what enters the region is detached there. Enabled
autocast changes dtypes in ways the graph does not show, so it is refused.
"""

from __future__ import annotations

import torch
from torch import fx

from autoplan.trace.refusals import Refuse, refused
from autoplan.trace.torch_private import AUTOCAST_REGION, GRAD_MODE_REGION

_DETACH = torch.ops.aten.detach.default


def inline_regions(module: fx.GraphModule, graph: fx.Graph, refuse: Refuse) -> None:
    """Replaces every region node of ``graph``, which is ``module``'s, by the region's nodes."""
    for node in list(graph.nodes):
        if node.target is GRAD_MODE_REGION:
            enabled, body, *operands = node.args
            _inline(module, graph, node, body, operands, refuse, detach=not enabled)
        elif node.target is AUTOCAST_REGION:
            device, _, enabled, _, body, *operands = node.args
            if enabled:
                what = f"torch.autocast({device!r}) inside the model is not supported"
                refuse(refused(node, what, "leave the precision to autoplan", "autocast"))
            _inline(module, graph, node, body, operands, refuse, detach=False)


def _inline(module, graph, node, body, operands, refuse, *, detach) -> None:
    inner = getattr(module, body.target)
    inline_regions(inner, inner.graph, refuse)
    values: dict[fx.Node, fx.Node] = {}
    detached: dict[fx.Node, fx.Node] = {}
    given = iter(operands)
    with graph.inserting_before(node):
        for part in inner.graph.nodes:
            if part.op == "placeholder":
                operand = next(given)
                if detach and isinstance(operand, fx.Node):
                    if operand not in detached:
                        detached[operand] = _detached(graph, operand, node)
                    operand = detached[operand]
                values[part] = operand
            elif part.op == "output":
                _replace_results(graph, node, part.args[0], values)
            else:
                values[part] = graph.node_copy(part, values.__getitem__)
    graph.erase_node(node)
    if not body.users:
        graph.erase_node(body)


def _detached(graph: fx.Graph, operand: fx.Node, region: fx.Node) -> fx.Node:
    copy = graph.call_function(_DETACH, (operand,))
    copy.meta = {**region.meta, "val": operand.meta["val"]}
    return copy


def _replace_results(graph, node, results, values) -> None:
    for getitem in list(node.users):
        getitem.replace_all_uses_with(values[results[getitem.args[1]]])
        graph.erase_node(getitem)
