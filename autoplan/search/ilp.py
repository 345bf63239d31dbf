"""Solves a ``Problem`` as a mixed-integer linear program with HiGHS.

Marginal form: only the choices s are binary. For every use r of a tensor, flows f_r[q, p] >= 0
say which conversion it takes, tied to the choices by their marginals:

    sum_p f_r[q, p] = sum of s over the producer's choices with class q
    sum_q f_r[q, p] = sum of s over the reader's choices with port p

With binary s the flow is one at the pair taken and zero elsewhere. The linear relaxation is as
tight as the Lagrangian bound of the memory constraint, where products of choices or big-M rows
are some 15 % loose. Uses that share a conversion pay y[q, p] >= f_r[q, p] once; storages w >= the
choices of each holder; exposed messages and transient peaks are bounded below by their terms.

HiGHS is deterministic here. Times enter in units of 0.1 us, memory in pages; the value of the
solution is recomputed from the assignment, and only the bound is the solver's.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from ortools.math_opt.python import mathopt

from autoplan.search.problem import (
    Overlap,
    Problem,
    Solution,
    Tensor,
    memory_of,
    time_of,
)

TIME_UNIT_S = 1e-7
RELATIVE_GAP = 1e-3

_Terms = list[tuple[float, mathopt.Variable]]


def solve(problem: Problem, *, relative_gap: float = RELATIVE_GAP) -> Solution | None:
    """The best assignment within the memory limit, or None when there is none.

    Args:
        problem: the candidate's decisions.
        relative_gap: the search stops when its bound is this close to its best assignment.
    """
    program = _Program(problem)
    result = _run(program.model, relative_gap)
    if result is None:
        return None
    values = result.variable_values()
    choices = tuple(max(range(len(s)), key=lambda c: values[s[c]]) for s in program.taken)
    time_s = time_of(problem, choices)
    bound_s = result.termination.objective_bounds.dual_bound * TIME_UNIT_S
    return Solution(
        choices=choices,
        time_s=time_s,
        memory_pages=memory_of(problem, choices),
        bound_s=min(bound_s, time_s),
    )


def relaxed_bound_s(problem: Problem) -> float:
    """A lower bound of the time: the linear relaxation; infinite when that is infeasible."""
    result = _run(_Program(problem, integer=False).model, RELATIVE_GAP)
    return math.inf if result is None else result.objective_value() * TIME_UNIT_S


def _run(model: mathopt.Model, relative_gap: float) -> mathopt.SolveResult | None:
    params = mathopt.SolveParameters(relative_gap_tolerance=relative_gap)
    result = mathopt.solve(model, mathopt.SolverType.HIGHS, params=params)
    reason = result.termination.reason
    if reason == mathopt.TerminationReason.INFEASIBLE:
        return None
    if reason != mathopt.TerminationReason.OPTIMAL:
        raise RuntimeError(f"HiGHS ended without an answer: {result.termination.detail}")
    return result


class _Program:
    """The linear program of a problem; ``taken[v][c]`` is the variable of choice c of node v."""

    def __init__(self, problem: Problem, *, integer: bool = True) -> None:
        self.model = mathopt.Model()
        self.cost: _Terms = []
        self.memory: _Terms = []
        self.kept: _Terms = []
        self.taken = [
            [self.model.add_variable(lb=0.0, ub=1.0, is_integer=integer) for _ in node.choices]
            for node in problem.nodes
        ]
        for node, s in zip(problem.nodes, self.taken, strict=True):
            self._row([(1.0, x) for x in s], lower=1.0, upper=1.0)
            self.cost += [(c.time_s / TIME_UNIT_S, x) for c, x in zip(node.choices, s, strict=True)]
            self.memory += [(c.memory_pages, x) for c, x in zip(node.choices, s, strict=True)]
        for tensor in problem.tensors:
            self._tensor(tensor)
        if problem.limit_pages is not None:
            self._memory(problem, problem.limit_pages)
        for overlap in problem.overlaps:
            self._overlap(overlap)
        offset = problem.fixed_s / TIME_UNIT_S
        self.model.minimize(_expression(self.cost) + offset)

    def _row(self, terms: _Terms, *, lower: float = -math.inf, upper: float = math.inf) -> None:
        self.model.add_linear_constraint(lb=lower, ub=upper, expr=_expression(terms))

    def _tensor(self, tensor: Tensor) -> None:
        """Flows of every use, and their conversions, paid once for each pair of classes."""
        table, copies = tensor.conversion_s, tensor.copy_pages
        if not any(any(row) for row in (*table, *copies)):
            return
        supply = _by_class(tensor.classes, self.taken[tensor.producer])
        users: dict[tuple[int, int], list[mathopt.Variable]] = defaultdict(list)
        for reader in dict.fromkeys(tensor.readers):
            demand = _by_class(reader.ports, self.taken[reader.node])
            flow = {
                (q, p): self.model.add_variable(lb=0.0, ub=1.0 if table[q][p] < math.inf else 0.0)
                for q in supply
                for p in demand
            }
            for q, chosen in supply.items():
                terms = [(1.0, flow[q, p]) for p in demand] + [(-1.0, s) for s in chosen]
                self._row(terms, lower=0.0, upper=0.0)
            for p, chosen in demand.items():
                terms = [(1.0, flow[q, p]) for q in supply] + [(-1.0, s) for s in chosen]
                self._row(terms, lower=0.0, upper=0.0)
            for (q, p), f in flow.items():
                if table[q][p] < math.inf and (table[q][p] or (copies and copies[q][p])):
                    users[q, p].append(f)
        for (q, p), flows in users.items():
            used = self._at_least(flows)
            self.cost.append((table[q][p] / TIME_UNIT_S, used))
            if copies:
                self.kept.append((copies[q][p], used))

    def _at_least(self, variables: list[mathopt.Variable]) -> mathopt.Variable:
        """A variable no smaller than any of these."""
        if len(variables) == 1:
            return variables[0]
        shared = self.model.add_variable(lb=0.0, ub=1.0)
        for variable in variables:
            self._row([(1.0, shared), (-1.0, variable)], lower=0.0)
        return shared

    def _memory(self, problem: Problem, limit: int) -> None:
        """The limit at both moments: the backward, and the optimizer's step."""
        groups: dict[str, _Terms] = defaultdict(list)
        for storage in problem.storages:
            held = self._held(storage.holders)
            self.kept += [(storage.kept_pages, x) for x in held]
            groups[storage.group] += [(storage.transient_pages, x) for x in held]
        peaks = [self._transient(problem, groups)]
        for peak in problem.peaks:
            terms = [self._weighted(group) for group in peak.groups]
            peaks.append(self._largest(terms))
        step = self._weighted(
            (v, tuple(c.step_pages for c in node.choices)) for v, node in enumerate(problem.nodes)
        )
        upper = float(limit - problem.fixed_pages)
        self._row([*self.memory, *self.kept, *((1.0, peak) for peak in peaks)], upper=upper)
        if any(weight for weight, _ in step):
            self._row([*self.memory, *step], upper=upper)

    def _transient(self, problem: Problem, groups: dict[str, _Terms]) -> mathopt.Variable:
        """Pages of the largest operator at work or block recomputed.

        Every assignment reaches ``floor``, so operators that never exceed it need no row.
        """
        floor = max((min(c.transient_pages for c in n.choices) for n in problem.nodes), default=0)
        terms = list(groups.values())
        for node, s in zip(problem.nodes, self.taken, strict=True):
            if max(c.transient_pages for c in node.choices) > floor:
                terms.append([(c.transient_pages, x) for c, x in zip(node.choices, s, strict=True)])
        return self._largest(terms, floor)

    def _largest(self, sums: Iterable[_Terms], floor: int = 0) -> mathopt.Variable:
        """A variable no smaller than any of these sums."""
        largest = self.model.add_variable(lb=float(floor))
        for terms in sums:
            if any(weight for weight, _ in terms):
                self._row([(1.0, largest)] + [(-weight, x) for weight, x in terms], lower=0.0)
        return largest

    def _held(self, holders: Iterable[tuple[int, frozenset[int]]]) -> list[mathopt.Variable]:
        """Variables that add up to one when any holder keeps the storage."""
        sets = [[self.taken[v][c] for c in sorted(keep)] for v, keep in holders if keep]
        if len(sets) <= 1:
            return sets[0] if sets else []
        held = self.model.add_variable(lb=0.0, ub=1.0)
        for chosen in sets:
            self._row([(1.0, held)] + [(-1.0, x) for x in chosen], lower=0.0)
        return [held]

    def _overlap(self, overlap: Overlap) -> None:
        """Exposed seconds: no less than their floor, no less than what outlasts the window."""
        exposed = self.model.add_variable(lb=0.0)
        messages = self._seconds(overlap.messages_s)
        window = self._seconds(overlap.window_s)
        fixed = overlap.fixed_messages_s / TIME_UNIT_S
        floor = [(-overlap.floor * t, x) for t, x in messages]
        self._row([(1.0, exposed), *floor], lower=overlap.floor * fixed)
        outlasting = [(-t, x) for t, x in messages] + window
        fixed_window = overlap.fixed_window_s / TIME_UNIT_S
        self._row([(1.0, exposed), *outlasting], lower=fixed - fixed_window)
        self.cost.append((1.0, exposed))

    def _seconds(self, times: Iterable[tuple[int, tuple[float, ...]]]) -> _Terms:
        return [(t / TIME_UNIT_S, x) for t, x in self._weighted(times)]

    def _weighted(self, weights: Iterable[tuple[int, Sequence[float]]]) -> _Terms:
        """One term for every choice of the nodes listed."""
        return [(w, x) for v, row in weights for w, x in zip(row, self.taken[v], strict=True)]


def _by_class(
    classes: tuple[int, ...], taken: list[mathopt.Variable]
) -> dict[int, list[mathopt.Variable]]:
    """The choice variables of each class, in the order of first appearance."""
    found: dict[int, list[mathopt.Variable]] = defaultdict(list)
    for number, variable in zip(classes, taken, strict=True):
        found[number].append(variable)
    return found


def _expression(terms: _Terms) -> mathopt.LinearSum:
    return mathopt.fast_sum([weight * variable for weight, variable in terms if weight])
