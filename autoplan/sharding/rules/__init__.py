"""How every operator splits over a mesh axis: one file per family, one line per operator.

An operator is known by its equation (``sharding.equation``); the strategies follow from it. An
operator that is not known is computed whole by every rank. No other package has cases by operator.
"""

from __future__ import annotations

from autoplan.sharding.enumerate import replicate, strategies
from autoplan.sharding.mesh import MeshAxis
from autoplan.sharding.rules.fused import wanted_parts
from autoplan.sharding.rules.registry import RULES, equation_of
from autoplan.sharding.strategies import Strategy
from autoplan.trace.graph import OpGraph, OpNode


def known(target: str) -> bool:
    """Whether there is a rule for the operator."""
    return target in RULES


def strategies_for(node: OpNode, graph: OpGraph, axis: MeshAxis) -> tuple[Strategy, ...]:
    """All ways to run a call on one axis, at the graph's global shapes; ``replicate`` is first."""
    equation = equation_of(node, graph)
    if equation is None:
        return (replicate(len(node.operands), len(node.outputs)),)
    inputs = [graph.meta(ref) for ref in node.operands]
    parts = {} if axis.splits_batch else wanted_parts(node, equation, graph)
    return strategies(equation, inputs, node.outputs, axis, parts)
