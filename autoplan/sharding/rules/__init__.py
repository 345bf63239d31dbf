"""How every operator splits over a mesh axis: one file per family, one line per operator.

An operator is known by its equation (``sharding.equation``); the strategies follow from it. An
operator that is not known is computed whole by every rank. No other package has cases by operator.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.sharding.enumerate import replicate, strategies
from autoplan.sharding.mesh import MeshAxis
from autoplan.sharding.placement import Placement
from autoplan.sharding.rules import attention
from autoplan.sharding.rules.parts import arriving_parts, wanted_parts
from autoplan.sharding.rules.registry import RULES, equation_of
from autoplan.sharding.strategies import Strategy
from autoplan.trace.graph import OpGraph, OpNode


def known(target: str) -> bool:
    """Whether there is a rule for the operator."""
    return target in RULES


def is_attention(target: str) -> bool:
    """Whether the operator is a fused attention, whose products run at a rate of their own."""
    return target in attention.RULES


def strategies_for(
    node: OpNode, graph: OpGraph, axis: MeshAxis, arriving: Sequence[Placement] = ()
) -> tuple[Strategy, ...]:
    """All ways to run a call on one axis, at the graph's global shapes; ``replicate`` is first.

    Args:
        arriving: placements of the operands where they are known; a dim that arrives sharded in
            parts is then offered in these parts.
    """
    equation = equation_of(node, graph)
    if equation is None:
        return (replicate(len(node.operands), len(node.outputs)),)
    inputs = [graph.meta(ref) for ref in node.operands]
    if axis.splits_batch:
        parts = arriving_parts(equation, arriving)
    else:
        parts = wanted_parts(node, equation, graph)
    return strategies(equation, inputs, node.outputs, axis, parts)
