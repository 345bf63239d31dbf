"""How every operator splits over a mesh axis: one file per family, one line per operator.

An operator is known by its equation (``sharding.equation``); the strategies follow from it. An
operator that is not known is computed whole by every rank. No other package has cases by operator.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.sharding.enumerate import replicate, strategies
from autoplan.sharding.equation import Shape
from autoplan.sharding.mesh import MeshAxis
from autoplan.sharding.rules.fused import wanted_parts
from autoplan.sharding.rules.registry import RULES, call_of, equation_of
from autoplan.sharding.strategies import Strategy
from autoplan.trace.graph import Arg, OpGraph, OpNode


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


def size_argument(node: OpNode) -> int | None:
    """Index of the argument that is the whole shape of the output, or None.

    On shards it is superseded by the local shape of the output. Some operators hold sizes in other
    forms (the pieces of a split): ``local_arguments`` covers all of them.
    """
    rule = RULES.get(node.target)
    return rule.size_argument if rule else None


def local_arguments(
    node: OpNode, graph: OpGraph, local_shapes: Sequence[Shape]
) -> tuple[tuple[Arg, ...], tuple[tuple[str, Arg], ...]]:
    """Arguments and keyword arguments of the call as it runs on shards.

    Args:
        local_shapes: shapes of one rank's outputs, all mesh axes taken together.
    """
    rule = RULES.get(node.target)
    if rule is None:
        return node.args, node.kwargs
    args = list(node.args)
    if rule.size_argument is not None:
        args[rule.size_argument] = tuple(local_shapes[0])
    if rule.local_arguments is not None:
        for index, value in rule.local_arguments(call_of(node, graph), local_shapes).items():
            args[index] = value
    return tuple(args), node.kwargs
