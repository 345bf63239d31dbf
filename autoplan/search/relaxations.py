"""Parts of a problem, and by how much problems of the same decisions differ at least."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from autoplan.search.problem import Node, Problem


def operators_only(problem: Problem, parameters: Collection[int]) -> Problem:
    """The problem without what parameters cost and without memory limit."""
    nodes = tuple(
        _for_nothing(node) if number in parameters else node
        for number, node in enumerate(problem.nodes)
    )
    return replace(problem, nodes=nodes, overlaps=(), fixed_s=0.0, limit_pages=None)


def _for_nothing(node: Node) -> Node:
    return replace(node, choices=tuple(replace(choice, time_s=0.0) for choice in node.choices))


def least_increase(before: Problem, after: Problem) -> float:
    """By how much the optimum rises at least when the costs of ``before`` become ``after``'s."""
    total = 0.0
    for old, new in zip(before.nodes, after.nodes, strict=True):
        total += min(b.time_s - a.time_s for a, b in zip(old.choices, new.choices, strict=True))
    for old, new in zip(before.tensors, after.tensors, strict=True):
        least = min(
            (
                b - a
                for row_a, row_b in zip(old.conversion_s, new.conversion_s, strict=True)
                for a, b in zip(row_a, row_b, strict=True)
                if b < math.inf
            ),
            default=0.0,
        )
        total += least * (1 if least > 0 else len(new.readers))
    return total
