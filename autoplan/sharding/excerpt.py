"""A few nodes of a graph, for what is asked of each kind of block once.

Repeated blocks are most of a deep graph. Written for another batch, or enumerated, the blocks of a
kind all give the same: it is enough to do it for one.
"""

from __future__ import annotations

from collections.abc import Collection

from autoplan.trace.graph import OpGraph, OpNode


def excerpt(graph: OpGraph, names: Collection[str]) -> OpGraph:
    """The nodes called ``names``, and whatever else they read as inputs; without blocks."""
    read = {ref.node for node in graph.nodes if node.name in names for ref in node.operands}
    return OpGraph(
        nodes=tuple(
            node if node.name in names else _as_input(node)
            for node in graph.nodes
            if node.name in names or node.name in read
        ),
        blocks=(),
        output=graph.output,
        batch=graph.batch,
    )


def _as_input(node: OpNode) -> OpNode:
    """A node of which only the outputs matter."""
    return OpNode(name=node.name, kind="input", target=node.name, outputs=node.outputs)
