"""How every operator splits over a mesh axis: one file per family, one line per operator.

An operator is known by its equation (``sharding.equation``); the strategies follow from it. An
operator that is not known is opaque (``sharding.opaque``). No other package has cases by operator.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.sharding.enumerate import replicate, strategies
from autoplan.sharding.equation import Equation
from autoplan.sharding.mesh import MeshAxis
from autoplan.sharding.opaque import (
    OpaqueOperator,
    grouped,
    keeps_samples_apart,
    split_by_samples,
)
from autoplan.sharding.placement import Placement
from autoplan.sharding.rules import attention
from autoplan.sharding.rules.parts import Wishes, arriving_parts
from autoplan.sharding.rules.registry import equation_of, rule_of
from autoplan.sharding.strategies import Strategy
from autoplan.trace.graph import OpGraph, OpNode


def known(target: str) -> bool:
    """Whether there is a rule for the operator."""
    return rule_of(target) is not None


def is_attention(target: str) -> bool:
    """Whether the operator is a fused attention, whose products run at a rate of their own."""
    return target in attention.RULES


def opaque_operators(graph: OpGraph) -> tuple[OpaqueOperator, ...]:
    """The operators of a graph that have no rule, in the order of their first calls."""
    return grouped(graph, [node for node in graph.of_kind("call") if not known(node.target)])


class GraphRules:
    """The rules read for one graph; equations are worked out once, for all blocks of a kind."""

    def __init__(self, graph: OpGraph) -> None:
        self._graph = graph
        self._equations: dict[str, Equation | None] = {}
        self._wishes = Wishes(graph, self._equation_of)

    def strategies(
        self, node: OpNode, axis: MeshAxis, arriving: Sequence[Placement] = ()
    ) -> tuple[Strategy, ...]:
        """All ways to run a call on one axis, at the graph's shapes; ``replicate`` is first.

        Args:
            arriving: placements of the operands where they are known; a dim that arrives sharded
                in parts is then offered in these parts.
        """
        equation = self._equation_of(node)
        inputs = [self._graph.meta(ref) for ref in node.operands]
        if equation is None:
            whole = replicate(len(node.operands), len(node.outputs))
            opaque = axis.splits_batch and not known(node.target)
            if opaque and keeps_samples_apart(node, inputs, self._graph.batch):
                return (whole, split_by_samples(node, inputs))
            return (whole,)
        if axis.splits_batch or axis.splits_tokens:
            parts = arriving_parts(equation, arriving)
        else:
            parts = self._wishes.of(node, equation)
        return strategies(equation, inputs, node.outputs, axis, parts)

    def _equation_of(self, node: OpNode) -> Equation | None:
        name = self._graph.representative.get(node.name, node.name)
        if name not in self._equations:
            self._equations[name] = equation_of(node, self._graph)
        return self._equations[name]
