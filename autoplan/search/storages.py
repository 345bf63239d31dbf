"""Whose storage a view has, in the placement that the view's own strategy implies."""

from __future__ import annotations

from collections.abc import Container

from autoplan.search.space import Space
from autoplan.sharding.placement import Placement
from autoplan.trace.graph import Ref


def followed(
    space: Space, ref: Ref, placement: Placement, within: Container[str]
) -> tuple[Ref, Placement]:
    """The allocated tensor behind ``ref``, in the placement that ``placement`` of it implies.

    Args:
        within: folded nodes, of which views are followed.
    """
    by_name = space.folded.graph.by_name
    while ref.node in within:
        node = by_name[ref.node]
        target = node.alias_of[ref.index] if node.alias_of else None
        if target is None:
            break
        position = node.operands.index(target)
        before = next(
            (
                strategy.inputs[position].placement
                for strategy in space.of(node.name)
                if strategy.outputs[ref.index] == placement
            ),
            None,
        )
        if before is None:
            break
        ref, placement = space.folded.operand(node, target), before
    return ref, placement
