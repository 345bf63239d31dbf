"""Inlines the nested graphs of ``torch.no_grad`` and ``torch.autocast`` regions.

Inside ``no_grad`` nothing is differentiated: what enters the region is detached there. An export
loses those regions inside of autocast's, where the calls are marked instead. The casts of
enabled autocast, which the graph does not show, are written out (``autocast``) where it is for the
kind of device that runs the model; for others it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from autoplan.trace.autocast import Autocast, write_casts
from autoplan.trace.refusals import Refuse, refused
from autoplan.trace.torch_private import AUTOCAST_REGION, GRAD_MODE_REGION, WITHOUT_GRAD

_DETACH = torch.ops.aten.detach.default


@dataclass(frozen=True, kw_only=True, slots=True)
class _Around:
    """What a graph is in.

    Attributes:
        autocast: enabled there, if any.
        detached: whether nothing in it is differentiated.
    """

    autocast: Autocast | None = None
    detached: bool = False


def inline_regions(
    module: fx.GraphModule,
    graph: fx.Graph,
    refuse: Refuse,
    autocast_on: str | None = None,
    around: _Around = _Around(),
) -> None:
    """Replaces every region node of ``graph``, which is ``module``'s, by the region's nodes.

    Args:
        autocast_on: the kind of device that runs the model, whose autocast is written out.
    """
    autocast = around.autocast
    for node in list(graph.nodes):
        if node.target is GRAD_MODE_REGION:
            enabled, body, *operands = node.args
            inner = getattr(module, body.target)
            own = autocast and replace(autocast, weights=_weights(inner, operands), cached={})
            within = _Around(autocast=own, detached=around.detached or not enabled)
            inline_regions(inner, inner.graph, refuse, autocast_on, within)
            _inline(inner, graph, node, body, operands, detach=not enabled)
        elif node.target is AUTOCAST_REGION:
            device, dtype, enabled, _, body, *operands = node.args
            inner, own = getattr(module, body.target), None
            if enabled and device == autocast_on:
                own = Autocast(device=device, dtype=dtype, weights=_weights(inner, operands))
            elif enabled:
                what = f"torch.autocast({device!r}) inside the model is not supported"
                refuse(refused(node, what, "leave the precision to autoplan", "autocast"))
            if not around.detached:
                _detach_marked(inner.graph)
            within = replace(around, autocast=own)
            inline_regions(inner, inner.graph, refuse, autocast_on, within)
            _inline(inner, graph, node, body, operands, detach=False)
        elif autocast is not None and not write_casts(graph, node, autocast):
            what = f"{node.target} inside torch.autocast casts what it makes on the way"
            cure = "leave the precision to autoplan, or call it outside"
            refuse(refused(node, what, cure, "autocast"))


def _weights(inner: fx.GraphModule, operands: Sequence[Any]) -> frozenset[fx.Node]:
    """The placeholders of a region that stand for parameters, as those of the whole graph may."""
    placeholders = [node for node in inner.graph.nodes if node.op == "placeholder"]
    return frozenset(
        own
        for own, operand in zip(placeholders, operands, strict=True)
        if isinstance(operand, fx.Node) and operand.op == "placeholder"
    )


def _detach_marked(graph: fx.Graph) -> None:
    """Detaches what calls without gradients read, whose regions get lost inside of autocast's."""
    detached: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or not node.meta.get(WITHOUT_GRAD):
            continue
        for operand in node.all_input_nodes:
            is_tensor = isinstance(operand.meta.get("val"), torch.Tensor)
            if not is_tensor or operand.meta.get(WITHOUT_GRAD):
                continue
            if operand not in detached:
                with graph.inserting_before(node):
                    detached[operand] = _detached(graph, operand, node)
            node.replace_input_with(operand, detached[operand])


def _inline(inner, graph, node, body, operands, *, detach) -> None:
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
