"""Which calls of a region its backward needs: only those can gain from running again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from autoplan.trace.graph import Block, OpGraph, OpNode, Ref


def needed_calls(
    calls: Sequence[OpNode],
    reads: Mapping[str, Sequence[Ref]],
    allocator: Callable[[Ref], Ref],
) -> frozenset[str]:
    """Names of the calls of whose results the backward needs some, or what they keep internally.

    What such a call reads is needed with it, since it may run again. Views are not among them: they
    follow what they are views of.

    Args:
        calls: of the region, in order.
        reads: operands of each call.
        allocator: the tensor whose storage a tensor shares.
    """
    found: set[str] = set()
    for node in calls:
        for kept in node.saved:
            if kept.operand is not None:
                found.add(allocator(reads[node.name][kept.operand]).node)
            else:
                found.add(node.name)
    for node in reversed(calls):
        if node.name in found:
            found.update(allocator(ref).node for ref in reads[node.name])
    return frozenset(node.name for node in calls if node.name in found and not is_view(node))


def is_view(node: OpNode) -> bool:
    """Whether all that a call makes shares memory with what it reads."""
    return bool(node.alias_of) and all(node.alias_of)


def needed_of_block(graph: OpGraph, block: Block) -> frozenset[str]:
    """The calls of one block that its backward needs."""
    inside = frozenset(block.nodes)
    nodes = [graph.by_name[name] for name in block.nodes]

    def allocator(ref: Ref) -> Ref:
        while ref.node in inside:
            node = graph.by_name[ref.node]
            base = node.alias_of[ref.index] if node.alias_of else None
            if base is None:
                break
            ref = base
        return ref

    return needed_calls(nodes, {node.name: node.operands for node in nodes}, allocator)
