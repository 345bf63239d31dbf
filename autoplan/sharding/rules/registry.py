"""All rules, by the operator they are for."""

from __future__ import annotations

from types import MappingProxyType

from autoplan.sharding.equation import Equation
from autoplan.sharding.rules import (
    attention,
    batch_norm,
    contraction,
    convolution,
    embedding,
    exchange,
    experts,
    factory,
    lookup,
    loss,
    norm,
    pieces,
    pointwise,
    recurrent,
    reduction,
    samples,
    spectral,
    view,
    writing,
)
from autoplan.sharding.rules.base import Call, Rule
from autoplan.sharding.rules.registered import registered
from autoplan.trace.graph import OpGraph, OpNode

RULES: MappingProxyType[str, Rule] = MappingProxyType(
    {
        **attention.RULES,
        **batch_norm.RULES,
        **contraction.RULES,
        **convolution.RULES,
        **embedding.RULES,
        **exchange.RULES,
        **experts.RULES,
        **factory.RULES,
        **lookup.RULES,
        **loss.RULES,
        **norm.RULES,
        **pieces.RULES,
        **pointwise.RULES,
        **recurrent.RULES,
        **reduction.RULES,
        **samples.RULES,
        **spectral.RULES,
        **view.RULES,
        **writing.RULES,
    }
)


def rule_of(target: str) -> Rule | None:
    """The rule of an operator, autoplan's own or a registered one."""
    return RULES.get(target) or registered(target)


def call_of(node: OpNode, graph: OpGraph) -> Call:
    """The call of a node, with the metas of its operands."""
    return Call(node=node, inputs=tuple(graph.meta(ref) for ref in node.operands))


def equation_of(node: OpNode, graph: OpGraph) -> Equation | None:
    """The equation of a call; None for an unknown operator or one that must run whole."""
    rule = rule_of(node.target)
    return rule(call_of(node, graph)) if rule and node.kind == "call" else None
