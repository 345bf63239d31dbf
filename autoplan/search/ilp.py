"""Solves a ``Problem`` as a mixed-integer linear program.

Marginal form: only the choices s are binary. For every use r of a tensor, flows f_r[q, p] >= 0
say which conversion it takes, tied to the choices by their marginals:

    sum_p f_r[q, p] = sum of s over the producer's choices with class q
    sum_q f_r[q, p] = sum of s over the reader's choices with port p

With binary s the flow is one at the pair taken and zero elsewhere. The linear relaxation is as
tight as the Lagrangian bound of the memory constraint, where products of choices or big-M rows
are some 15 % loose. Uses that share a conversion pay y[q, p] >= f_r[q, p] once; storages w >= the
choices of each holder; exposed messages and peaks are bounded below by their terms.

Times enter in units of 0.1 us, memory in pages; the value of the solution is recomputed from the
assignment, and only the bound is the solver's.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from autoplan.search.linear_program import LinearProgram
from autoplan.search.problem import Overlap, Problem, Solution, Tensor, valued

TIME_UNIT_S = 1e-7
RELATIVE_GAP = 1e-3

_Terms = list[tuple[float, int]]


def solve(problem: Problem, *, relative_gap: float = RELATIVE_GAP) -> Solution | None:
    """The best assignment within the memory limit, or None when there is none.

    Args:
        problem: the candidate's decisions.
        relative_gap: the search stops when its bound is this close to its best assignment.
    """
    if all(len(node.choices) == 1 for node in problem.nodes):
        return only_solution(problem)
    program = _Program(problem)
    found = program.linear.minimise(relative_gap=relative_gap)
    if found is None:
        return None
    values, bound = found
    return valued(problem, program.choices(values), problem.fixed_s + bound * TIME_UNIT_S)


def solve_memory(problem: Problem) -> Solution | None:
    """The assignment with the fewest pages, whatever its time and the limit.

    None when conversions allow no assignment at all. ``bound_s`` means nothing here.
    """
    unlimited = replace(problem, limit_pages=None, overlaps=())
    program = _Program(unlimited)
    program.minimise_memory(unlimited)
    found = program.linear.minimise(relative_gap=RELATIVE_GAP)
    if found is None:
        return None
    return valued(problem, program.choices(found[0]))


def only_solution(problem: Problem) -> Solution | None:
    """The answer where nothing is left to choose."""
    only = valued(problem, (0,) * len(problem.nodes), math.inf)
    limit = math.inf if problem.limit_pages is None else problem.limit_pages
    return None if only.time_s == math.inf or only.memory_pages > limit else only


class _Program:
    """The linear program of a problem; ``taken[v][c]`` is the variable of choice c of node v."""

    def __init__(self, problem: Problem) -> None:
        self.linear = LinearProgram()
        self.kept: _Terms = []
        self.taken = [
            [
                self.linear.variable(cost=c.time_s / TIME_UNIT_S, upper=1.0, integer=True)
                for c in node.choices
            ]
            for node in problem.nodes
        ]
        for s in self.taken:
            self.linear.row([(1.0, x) for x in s], lower=1.0, upper=1.0)
        for tensor in problem.tensors:
            self._tensor(tensor)
        if problem.limit_pages is not None:
            for moment in self._moments(problem):
                upper = float(problem.limit_pages - problem.fixed_pages)
                self.linear.row(moment, upper=upper)
        for overlap in problem.overlaps:
            self._overlap(overlap)

    def choices(self, values: Sequence[float]) -> tuple[int, ...]:
        """The assignment that values of the variables mean."""
        return tuple(max(range(len(s)), key=lambda c: values[s[c]]) for s in self.taken)

    def minimise_memory(self, problem: Problem) -> None:
        """Makes the pages of the worse moment the objective, in place of the time."""
        self.linear.cost[:] = [0.0] * len(self.linear.cost)
        pages = self.linear.variable(cost=1.0)
        for moment in self._moments(problem):
            self.linear.row([*moment, (-1.0, pages)], upper=0.0)

    def _tensor(self, tensor: Tensor) -> None:
        """Flows of every use, and their conversions, paid once for each pair of classes."""
        table, copies = tensor.conversion_s, tensor.copy_pages
        if not any(any(row) for row in (*table, *copies)):
            return
        supply = _by_class(tensor.classes, self.taken[tensor.producer])
        users: dict[tuple[int, int], list[int]] = defaultdict(list)
        for reader in dict.fromkeys(tensor.readers):
            demand = _by_class(reader.ports, self.taken[reader.node])
            flow = {
                (q, p): self.linear.variable(upper=1.0 if table[q][p] < math.inf else 0.0)
                for q in supply
                for p in demand
            }
            for q, chosen in supply.items():
                self._equal([flow[q, p] for p in demand], chosen)
            for p, chosen in demand.items():
                self._equal([flow[q, p] for q in supply], chosen)
            for (q, p), f in flow.items():
                if table[q][p] < math.inf and (table[q][p] or (copies and copies[q][p])):
                    users[q, p].append(f)
        for (q, p), flows in users.items():
            used = self._largest_of(flows)
            self.linear.cost[used] += table[q][p] / TIME_UNIT_S
            if copies:
                self.kept.append((copies[q][p], used))

    def _equal(self, flows: list[int], chosen: list[int]) -> None:
        terms = [(1.0, f) for f in flows] + [(-1.0, s) for s in chosen]
        self.linear.row(terms, lower=0.0, upper=0.0)

    def _largest_of(self, variables: list[int]) -> int:
        """A variable no smaller than any of these."""
        if len(variables) == 1:
            return variables[0]
        shared = self.linear.variable(upper=1.0)
        for variable in variables:
            self.linear.row([(1.0, shared), (-1.0, variable)], lower=0.0)
        return shared

    def _moments(self, problem: Problem) -> tuple[_Terms, _Terms]:
        """Pages at both moments: the backward, and the optimizer's step."""
        groups: dict[str, _Terms] = defaultdict(list)
        backward = list(self.kept)
        for storage in problem.storages:
            held = self._held(storage.holders)
            backward += [(storage.kept_pages, x) for x in held]
            groups[storage.group] += [(storage.transient_pages, x) for x in held]
        backward.append((1.0, self._transient(problem, groups)))
        for peak in problem.peaks:
            largest = self._largest([self._weighted(group) for group in peak.groups])
            backward.append((1.0, largest))
        always = self._weighted(
            (v, [c.memory_pages for c in node.choices]) for v, node in enumerate(problem.nodes)
        )
        step = self._weighted(
            (v, [c.step_pages for c in node.choices]) for v, node in enumerate(problem.nodes)
        )
        return [*always, *backward], [*always, *step]

    def _transient(self, problem: Problem, groups: dict[str, _Terms]) -> int:
        """Pages of the largest operator at work or block recomputed.

        Every assignment reaches ``floor``, so operators that never exceed it need no row.
        """
        floor = max((min(c.transient_pages for c in n.choices) for n in problem.nodes), default=0)
        terms = list(groups.values())
        for node, s in zip(problem.nodes, self.taken, strict=True):
            if max(c.transient_pages for c in node.choices) > floor:
                terms.append([(c.transient_pages, x) for c, x in zip(node.choices, s, strict=True)])
        return self._largest(terms, floor)

    def _largest(self, sums: Iterable[_Terms], floor: int = 0) -> int:
        """A variable no smaller than any of these sums."""
        largest = self.linear.variable(lower=float(floor))
        for terms in sums:
            if any(weight for weight, _ in terms):
                self.linear.row([(1.0, largest)] + [(-w, x) for w, x in terms], lower=0.0)
        return largest

    def _held(self, holders: Iterable[tuple[int, frozenset[int]]]) -> list[int]:
        """Variables that add up to one when any holder keeps the storage."""
        sets = [[self.taken[v][c] for c in sorted(keep)] for v, keep in holders if keep]
        if len(sets) <= 1:
            return sets[0] if sets else []
        held = self.linear.variable(upper=1.0)
        for chosen in sets:
            self.linear.row([(1.0, held)] + [(-1.0, x) for x in chosen], lower=0.0)
        return [held]

    def _overlap(self, overlap: Overlap) -> None:
        """Exposed seconds: no less than their floor, no less than what outlasts the window."""
        exposed = self.linear.variable(cost=1.0)
        messages = self._seconds(overlap.messages_s)
        window = self._seconds(overlap.window_s)
        fixed = overlap.fixed_messages_s / TIME_UNIT_S
        floor = [(-overlap.floor * t, x) for t, x in messages]
        self.linear.row([(1.0, exposed), *floor], lower=overlap.floor * fixed)
        outlasting = [(-t, x) for t, x in messages] + window
        fixed_window = overlap.fixed_window_s / TIME_UNIT_S
        self.linear.row([(1.0, exposed), *outlasting], lower=fixed - fixed_window)

    def _seconds(self, times: Iterable[tuple[int, Sequence[float]]]) -> _Terms:
        return [(t / TIME_UNIT_S, x) for t, x in self._weighted(times)]

    def _weighted(self, weights: Iterable[tuple[int, Sequence[float]]]) -> _Terms:
        """One term for every choice of the nodes listed."""
        return [(w, x) for v, row in weights for w, x in zip(row, self.taken[v], strict=True)]


def _by_class(classes: tuple[int, ...], taken: list[int]) -> dict[int, list[int]]:
    """The choice variables of each class, in the order of first appearance."""
    found: dict[int, list[int]] = defaultdict(list)
    for number, variable in zip(classes, taken, strict=True):
        found[number].append(variable)
    return found
