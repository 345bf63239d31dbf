"""Answers a ``Problem`` by the cheapest exact method.

Without overlaps and memory limit, elimination finds the optimum. With overlaps it finds bounds and
plans (``hiding``); where the plan costs no more than the bound, both are the optimum. A plan that
fits the memory limit although it was made without is the best with it, too. One that does not fit
starts the search for a price on memory (``memory_price``), which bounds, finds plans, and strikes
out choices. What is left open goes to the integer program.
"""

from __future__ import annotations

import math
from dataclasses import replace

from autoplan.search import ilp
from autoplan.search.elimination import Elimination
from autoplan.search.fixing import restricted
from autoplan.search.hiding import Hiding
from autoplan.search.ilp import RELATIVE_GAP
from autoplan.search.memory_price import MemoryPrice
from autoplan.search.problem import Problem, Solution, valued
from autoplan.search.tables import conversion_tables, scopes

_MOST_SHARES = 8
_ROUNDING = 1e-12


def solve(
    problem: Problem, *, relative_gap: float = RELATIVE_GAP, below_s: float = math.inf
) -> Solution | None:
    """The best assignment within the memory limit, or None when there is none.

    Args:
        problem: the candidate's decisions.
        relative_gap: how far the assignment may be from the proven bound.
        below_s: assignments that take longer are of no interest: where the bound is no less, the
            assignment may be any that fits.
    """
    if all(len(node.choices) == 1 for node in problem.nodes):
        return ilp.only_solution(problem)
    gap = max(relative_gap, _ROUNDING)
    fastest = _fastest(problem, gap)
    if fastest is not None:
        limit = problem.limit_pages
        if fastest.time_s == math.inf:
            return None
        if limit is None or fastest.memory_pages <= limit:
            return fastest
        price = MemoryPrice(problem, limit, fastest)
        if price.search(gap, below_s):
            return price.answer
        if price.answer is not None:
            return _improved(problem, price, price.answer, relative_gap, below_s)
    return ilp.solve(problem, relative_gap=relative_gap)


def _fastest(problem: Problem, relative_gap: float) -> Solution | None:
    """The best assignment without memory limit; None when elimination does not prove it."""
    elimination = Elimination([len(node.choices) for node in problem.nodes], scopes(problem))
    if not elimination.is_small:
        return None
    hiding, conversions = Hiding(problem), conversion_tables(problem)
    best: Solution | None = None
    bound_s = -math.inf
    for _ in range(_MOST_SHARES if problem.overlaps else 1):
        least_s, choices = elimination.minimise(hiding.seconds(), conversions)
        bound_s = max(bound_s, hiding.fixed_s + least_s)
        found = valued(problem, choices)
        if best is None or found.time_s < best.time_s:
            best = found
        if best.time_s == math.inf or bound_s >= best.time_s * (1 - relative_gap):
            return replace(best, bound_s=min(bound_s, best.time_s))
        hiding.follow(choices)
    return None


def _improved(
    problem: Problem, price: MemoryPrice, known: Solution, relative_gap: float, below_s: float
) -> Solution:
    """``known``, or what is better: looked for among the choices that allow it alone."""
    least_s = min(known.time_s, below_s)
    kept = price.below(least_s)
    found = None
    if all(kept):
        found = ilp.solve(restricted(problem, kept), relative_gap=relative_gap)
    if found is None:
        return replace(known, bound_s=least_s)
    bound_s = min(found.bound_s, least_s)
    if found.time_s >= known.time_s:
        return replace(known, bound_s=bound_s)
    choices = tuple(options[choice] for options, choice in zip(kept, found.choices, strict=True))
    return replace(found, choices=choices, bound_s=bound_s)
