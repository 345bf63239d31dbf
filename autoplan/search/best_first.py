"""Finds the best candidate by best-first branch and bound.

Open questions wait in order of their lower bounds, and the most promising is answered next:

- a *family*, all candidates of one tensor-parallel degree: one solve without weights and without
  memory limit at the largest microbatch. Smaller microbatches cost no less for any choice, and by
  how much more each choice costs at least is added to their bounds;
- a *candidate* with as few recomputed blocks as could fit: one solve without memory limit. If the
  answer fits, it is the best of the candidate; else it is repaired by recomputing more blocks;
- a *range* of counts of recomputed blocks: solves under the memory limit, one count at a time.

The search ends when the lowest bound is within ``TOLERANCE`` of the best plan found.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from autoplan.search.bounds import (
    ActivationFloor,
    activation_floor,
    fewest_bytes,
    fewest_recomputed,
    fewest_seconds,
    recompute_s,
)
from autoplan.search.candidates import Candidate
from autoplan.search.found import Found
from autoplan.search.ilp import RELATIVE_GAP, solve
from autoplan.search.pricing import Pricing
from autoplan.search.problem import Node, Problem, Solution, memory_of, time_of
from autoplan.search.recompute import Policy, RecomputeOrder, recompute_order

TOLERANCE = RELATIVE_GAP

RUNNER_UP_TRIES = 4

Progress = Callable[[int, int, float | None], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The best plan, the proven lower bound, and the best plan found of each ``tp`` degree."""

    best: Found | None
    bound_s: float
    by_tp: dict[int, Found]


@dataclass(order=True, slots=True)
class _Question:
    """Something still open; ``serial`` makes the order total and the search deterministic."""

    bound_s: float
    serial: int
    family: int | None = field(default=None, compare=False)
    candidate: Candidate | None = field(default=None, compare=False)
    counts: range | None = field(default=None, compare=False)


class BestFirst:
    """One search over candidates; ``run`` answers it."""

    def __init__(
        self,
        pricing: Pricing,
        candidates: tuple[Candidate, ...],
        policy: Policy,
        progress: Progress | None = None,
    ) -> None:
        self.pricing = pricing
        self.candidates = candidates
        self.policy: Policy = policy
        self.progress = progress
        self.by_tp: dict[int, Found] = {}
        self.proven_s = math.inf
        self._open: list[_Question] = []
        self._serial = 0
        self._floors: dict[tuple[int, int], ActivationFloor] = {}
        self._orders: dict[tuple[int, int], RecomputeOrder] = {}
        self._answered: set[Candidate] = set()

    def run(self) -> Outcome:
        """Searches until the best plan is proven to be within the tolerance."""
        for tp in dict.fromkeys(candidate.tp for candidate in self.candidates):
            self._ask(fewest_seconds(self._model(tp)), family=tp)
        while self._open:
            if self._open[0].bound_s >= self.best_s * (1 - TOLERANCE):
                self.proven_s = min(self.proven_s, self._open[0].bound_s)
                break
            self._answer(heapq.heappop(self._open))
            self._report()
        return Outcome(
            best=self.best, bound_s=min(self.proven_s, self.best_s), by_tp=dict(self.by_tp)
        )

    def settle(self, tp: int) -> Found | None:
        """A good plan of one degree, also where the search had no need to look."""
        for _ in range(RUNNER_UP_TRIES):
            waiting = [q for q in self._open if tp in (q.family, q.candidate and q.candidate.tp)]
            known = self.by_tp.get(tp)
            if not waiting or (known and min(waiting).bound_s >= known.time_s):
                break
            question = min(waiting)
            self._open.remove(question)
            self._answer(question)
        return self.by_tp.get(tp)

    @property
    def best(self) -> Found | None:
        return min(self.by_tp.values(), key=lambda found: found.time_s, default=None)

    @property
    def best_s(self) -> float:
        return self.best.time_s if self.best else math.inf

    def order(self, candidate: Candidate) -> RecomputeOrder:
        """In which order the candidate recomputes its blocks."""
        key = candidate.tp, candidate.microbatch
        if key not in self._orders:
            self._orders[key] = recompute_order(self.pricing.costs(candidate))
        return self._orders[key]

    def problem(self, candidate: Candidate, count: int, *, limited: bool = True) -> Problem:
        """The candidate's decisions when ``count`` blocks are recomputed."""
        problem = self.pricing.problem(candidate, self.order(candidate).of(count))
        return problem if limited else replace(problem, limit_pages=None)

    def found(self, candidate: Candidate, count: int, choices: tuple[int, ...]) -> Found:
        """The plan with these choices, whether it fits or not."""
        problem = self.problem(candidate, count)
        return Found(
            candidate=candidate,
            count=count,
            recomputed=self.order(candidate).of(count),
            choices=choices,
            time_s=time_of(problem, choices),
            memory_pages=memory_of(problem, choices),
        )

    def fits(self, found: Found) -> bool:
        """Whether a plan stays within the memory limit."""
        return found.memory_pages <= self.pricing.limit_pages

    def offer(self, found: Found | None) -> None:
        """Keeps a plan if it fits and is the best of its degree so far."""
        if found is None or found.time_s == math.inf or not self.fits(found):
            return
        known = self.by_tp.get(found.candidate.tp)
        if known is None or found.time_s < known.time_s:
            self.by_tp[found.candidate.tp] = found

    def _report(self) -> None:
        if self.progress is not None:
            best = self.best_s if self.best else None
            self.progress(len(self._answered), len(self.candidates), best)

    def _ask(self, bound_s: float, **what: object) -> None:
        self._serial += 1
        heapq.heappush(self._open, _Question(bound_s, self._serial, **what))  # type: ignore[arg-type]

    def _answer(self, question: _Question) -> None:
        if question.family is not None:
            self._family(question.family)
        elif question.candidate is not None and question.counts is None:
            self.candidate(question.candidate)
        elif question.candidate is not None and question.counts is not None:
            self._range(question.candidate, question.counts, question.bound_s)

    def _largest(self, tp: int) -> Candidate:
        members = (candidate for candidate in self.candidates if candidate.tp == tp)
        return max(members, key=lambda candidate: (candidate.microbatch, -candidate.zero))

    def _model(self, tp: int) -> Problem:
        """The operators of a degree at its largest microbatch, where they are cheapest."""
        largest = self._largest(tp)
        return _operators_only(self.problem(largest, 0), self._parameters(largest))

    def _parameters(self, candidate: Candidate) -> Collection[int]:
        return self.pricing.costs(candidate).weights.elements.keys()

    def _family(self, tp: int) -> None:
        model = self._model(tp)
        solution = solve(model)
        if solution is None:
            return
        increases: dict[int, float] = {}
        parameters = self._parameters(self._largest(tp))
        for candidate in self.candidates:
            if candidate.tp != tp:
                continue
            problem = self.problem(candidate, 0, limited=False)
            if candidate.microbatch not in increases:
                increases[candidate.microbatch] = _least_increase(
                    model, _operators_only(problem, parameters)
                )
            count = self.fewest(candidate)
            if count is None:
                continue
            bound_s = solution.bound_s + increases[candidate.microbatch]
            bound_s += fewest_seconds(_weights_only(problem, parameters))
            bound_s += recompute_s(candidate, self._floor(candidate), self.order(candidate), count)
            self._ask(bound_s, candidate=candidate)

    def _floor(self, candidate: Candidate) -> ActivationFloor:
        key = candidate.tp, candidate.microbatch
        if key not in self._floors:
            costs = self.pricing.costs(candidate)
            self._floors[key] = activation_floor(costs.microbatch, costs.storages)
        return self._floors[key]

    def fewest_bytes(self, candidate: Candidate) -> float:
        """No plan of the candidate takes less memory."""
        order, floor = self.order(candidate), self._floor(candidate)
        most = order.counts(self.policy)[1]
        return fewest_bytes(self.pricing.costs(candidate), floor, order, most)

    def fewest(self, candidate: Candidate) -> int | None:
        """Fewest recomputed blocks with which the candidate could fit; None if it cannot."""
        order = self.order(candidate)
        costs = self.pricing.costs(candidate)
        fewest, most = order.counts(self.policy)
        return fewest_recomputed(costs, self._floor(candidate), order, fewest, most)

    def candidate(self, candidate: Candidate) -> None:
        """Solves a candidate without memory limit, and makes the answer fit if it does not."""
        self._answered.add(candidate)
        count = self.fewest(candidate)
        if count is None:
            return
        problem = self.problem(candidate, count, limited=False)
        solution = solve(problem)
        if solution is None:
            return
        most = self.order(candidate).counts(self.policy)[1]
        fitting = self._fitting(candidate, solution, count, most)
        found = None if fitting is None else self.found(candidate, fitting, solution.choices)
        self.offer(found)
        if found is not None and fitting == count:
            self.proven_s = min(self.proven_s, solution.bound_s)
        elif all(len(node.choices) == 1 for node in problem.nodes):
            self.proven_s = min(self.proven_s, found.time_s if found else math.inf)
        else:
            stop = most + 1 if fitting is None else fitting
            self._ask(solution.bound_s, candidate=candidate, counts=range(count, stop))

    def _fitting(
        self, candidate: Candidate, solution: Solution, fewest: int, most: int
    ) -> int | None:
        """The smallest count with which these choices fit: more blocks never take more memory."""
        if self.fits(self.found(candidate, fewest, solution.choices)):
            return fewest
        if not self.fits(self.found(candidate, most, solution.choices)):
            return None
        low, high = fewest + 1, most
        while low < high:
            middle = (low + high) // 2
            if self.fits(self.found(candidate, middle, solution.choices)):
                high = middle
            else:
                low = middle + 1
        return high

    def _range(self, candidate: Candidate, counts: range, bound_s: float) -> None:
        """Solves the lowest count; where it has no answer, the lowest that has one."""
        count = counts.start
        solution = solve(self.problem(candidate, count))
        if solution is None and len(counts) > 1:
            low, high = count + 1, counts.stop
            while low < high:
                middle = (low + high) // 2
                tried = solve(self.problem(candidate, middle))
                if tried is None:
                    low = middle + 1
                else:
                    high, solution = middle, tried
            count = high
        if solution is None:
            return
        self.offer(self.found(candidate, count, solution.choices))
        self.proven_s = min(self.proven_s, solution.bound_s)
        if count + 1 < counts.stop:
            order, floor = self.order(candidate), self._floor(candidate)
            more_s = recompute_s(candidate, floor, order, count + 1)
            more_s -= recompute_s(candidate, floor, order, counts.start)
            self._ask(bound_s + more_s, candidate=candidate, counts=range(count + 1, counts.stop))


def _operators_only(problem: Problem, parameters: Collection[int]) -> Problem:
    """The problem without what parameters cost and without memory limit."""
    nodes = tuple(
        _for_nothing(node) if number in parameters else node
        for number, node in enumerate(problem.nodes)
    )
    return replace(problem, nodes=nodes, overlaps=(), fixed_s=0.0, limit_pages=None)


def _weights_only(problem: Problem, parameters: Collection[int]) -> Problem:
    """What parameters cost, without the operators."""
    nodes = tuple(
        node if number in parameters else _for_nothing(node)
        for number, node in enumerate(problem.nodes)
    )
    return replace(problem, nodes=nodes, tensors=())


def _for_nothing(node: Node) -> Node:
    return replace(node, choices=tuple(replace(choice, time_s=0.0) for choice in node.choices))


def _least_increase(before: Problem, after: Problem) -> float:
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
