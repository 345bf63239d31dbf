"""Finds the best candidate by best-first branch and bound.

Open questions wait in order of their lower bounds, and the most promising is answered next:

- a *degree*, all candidates of one ``tp``: one solve of the operators alone, without weights and
  memory limit, at the largest microbatch. Smaller microbatches cost no less for any choice, and by
  how much more each choice costs at least is added to their bounds;
- a *size*, all candidates of one ``tp`` and microbatch: the same solve at that microbatch;
- a *candidate* with as few recomputed blocks as could fit: one solve without memory limit. If the
  answer fits, it is the best of the candidate; else more blocks are recomputed until it fits;
- a *range* of counts of recomputed blocks: one solve under the memory limit in which every cost is
  the lowest of the range; its answer is tried at the lowest count where it fits, and the range is
  halved.

The search ends when the lowest bound is within ``TOLERANCE`` of the best plan found.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field, replace

from autoplan.search.bounds import (
    ActivationFloor,
    activation_floor,
    fewest_bytes,
    fewest_recomputed,
    fewest_seconds,
    fewest_weight_seconds,
    recompute_s,
)
from autoplan.search.candidates import Candidate
from autoplan.search.deadline import Deadline
from autoplan.search.found import Found
from autoplan.search.ilp import RELATIVE_GAP
from autoplan.search.pricing import Pricing
from autoplan.search.problem import Problem, Solution, memory_of, time_of
from autoplan.search.proof import Counted
from autoplan.search.recompute import Policy, RecomputeOrder, recompute_order
from autoplan.search.relaxations import least_increase
from autoplan.search.solver import solve

TOLERANCE = RELATIVE_GAP

# A degree that lost is looked at until it has a plan, and once more if it had one already.
MOST_RUNNER_UP_TRIES = 5
# Nor need it be proven that its plan is the best of the degree.
_RUNNER_UP_GAP = 0.2

# Memory falls almost in a straight line with the recomputed blocks; after so many guesses along it
# the range is halved.
_GUESSES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The best plan and the proven lower bound; ``is_cut``: the deadline came before the end."""

    best: Found | None
    bound_s: float
    is_cut: bool = False


@dataclass(order=True, slots=True)
class _Question:
    """Something still open; ``serial`` makes the order total and the search deterministic."""

    bound_s: float
    serial: int
    about: int | tuple[int, int] | Candidate | _Range = field(compare=False)

    @property
    def tp(self) -> int:
        if isinstance(self.about, int):
            return self.about
        if isinstance(self.about, tuple):
            return self.about[0]
        return self.about.tp if isinstance(self.about, Candidate) else self.about.candidate.tp


@dataclass(frozen=True, slots=True)
class _Range:
    """Counts of recomputed blocks of a candidate, both ends included."""

    candidate: Candidate
    fewest: int
    most: int


class BestFirst:
    """One search over candidates; ``run`` answers it."""

    def __init__(
        self,
        pricing: Pricing,
        candidates: tuple[Candidate, ...],
        policy: Policy,
        progress: Counted | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        self.pricing = pricing
        self.candidates = candidates
        self.policy: Policy = policy
        self.progress = progress
        self._deadline = deadline or Deadline()
        self.by_tp: dict[int, Found] = {}
        self.proven_s = math.inf
        self._open: list[_Question] = []
        self._serial = 0
        self._floors: dict[tuple[int, int], ActivationFloor] = {}
        self._orders: dict[tuple[int, int], RecomputeOrder] = {}
        self._models: dict[tuple[int, int], Problem] = {}
        self._rests: dict[Candidate, float] = {}
        self._answered: set[Candidate] = set()
        self._pinned: dict[tuple[Candidate, int], Found | None] = {}

    def run(self) -> Outcome:
        """Searches until the best plan is proven to be within the tolerance, or time is over."""
        for tp in dict.fromkeys(candidate.tp for candidate in self.candidates):
            least_s = fewest_seconds(self._model(self._largest(tp)))
            members = (candidate for candidate in self.candidates if candidate.tp == tp)
            self._ask(least_s + min(map(self._rest_s, members)), tp)
        is_cut = False
        while self._open:
            is_proven = self._open[0].bound_s >= self.best_s * (1 - TOLERANCE)
            is_cut = not is_proven and self._deadline.is_over
            if is_proven or is_cut:
                self.proven_s = min(self.proven_s, self._open[0].bound_s)
                break
            self._answer(heapq.heappop(self._open))
            self._report()
        best = self.best if is_cut else self._repeatable(self.best)
        return Outcome(best=best, bound_s=min(self.proven_s, self.best_s), is_cut=is_cut)

    def settle(self, tp: int) -> Found | None:
        """A good plan of one degree, also where the search had no need to look."""
        for tries in range(MOST_RUNNER_UP_TRIES):
            waiting = [question for question in self._open if question.tp == tp]
            known = self.by_tp.get(tp)
            if not waiting or (known and (tries or min(waiting).bound_s >= known.time_s)):
                break
            question = min(waiting)
            self._open.remove(question)
            self._answer(question, gap=_RUNNER_UP_GAP)
        return self._repeatable(self.by_tp.get(tp))

    @property
    def best(self) -> Found | None:
        """The plan of the smallest degree among those within the tolerance of the fastest."""
        if not self.by_tp:
            return None
        fastest_s = min(found.time_s for found in self.by_tp.values())
        close = (f for f in self.by_tp.values() if f.time_s <= fastest_s * (1 + TOLERANCE))
        return min(close, key=lambda found: found.candidate.tp)

    @property
    def best_s(self) -> float:
        return min((found.time_s for found in self.by_tp.values()), default=math.inf)

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

    def pinned(self, candidate: Candidate, count: int) -> Found | None:
        """The best plan of a candidate that recomputes ``count`` blocks.

        The same whatever else was searched, so that a plan whose decisions are pinned is the plan
        that was shown. One that does not fit where none does; None when none is possible.
        """
        key = candidate, count
        if key not in self._pinned:
            self._pinned[key] = self._best_pinned(candidate, count)
        return self._pinned[key]

    def _repeatable(self, found: Found | None) -> Found | None:
        return found and (self.pinned(found.candidate, found.count) or found)

    def _best_pinned(self, candidate: Candidate, count: int) -> Found | None:
        free = solve(self.problem(candidate, count, limited=False))
        if free is None:
            return None
        found = self.found(candidate, count, free.choices)
        if self.fits(found):
            return found
        fitting = solve(self.problem(candidate, count))
        return self.found(candidate, count, fitting.choices) if fitting else found

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
            best_s = self.best_s if self.by_tp else None
            self.progress(len(self._answered), len(self.candidates), best_s)

    def _ask(self, bound_s: float, about: int | tuple[int, int] | Candidate | _Range) -> None:
        if bound_s == math.inf:
            return
        self._serial += 1
        heapq.heappush(self._open, _Question(bound_s, self._serial, about))

    def _answer(self, question: _Question, gap: float = RELATIVE_GAP) -> None:
        about = question.about
        if isinstance(about, int):
            self._degree(about)
        elif isinstance(about, tuple):
            self._size(*about)
        elif isinstance(about, Candidate):
            self._candidate(about)
        else:
            self._range(about, gap)

    def _largest(self, tp: int) -> Candidate:
        members = (candidate for candidate in self.candidates if candidate.tp == tp)
        return max(members, key=lambda candidate: (candidate.microbatch, -candidate.zero))

    def _model(self, candidate: Candidate) -> Problem:
        """A candidate's operators alone; the same for all of a degree and microbatch."""
        key = candidate.tp, candidate.microbatch
        if key not in self._models:
            self._models[key] = self.pricing.operators(candidate)
        return self._models[key]

    def _degree(self, tp: int) -> None:
        largest = self._largest(tp)
        model = self._model(largest)
        solution = solve(model)
        if solution is None:
            return
        for size, members in self._sizes(tp).items():
            if size == largest.microbatch:
                self._members(members, solution.bound_s)
            else:
                increase = least_increase(model, self._model(members[0]))
                bound_s = solution.bound_s + increase + min(map(self._rest_s, members))
                self._ask(bound_s, (tp, size))

    def _size(self, tp: int, size: int) -> None:
        members = self._sizes(tp)[size]
        solution = solve(self._model(members[0]))
        if solution is not None:
            self._members(members, solution.bound_s)

    def _sizes(self, tp: int) -> dict[int, list[Candidate]]:
        """Candidates of a degree by microbatch."""
        found: dict[int, list[Candidate]] = {}
        for candidate in self.candidates:
            if candidate.tp == tp:
                found.setdefault(candidate.microbatch, []).append(candidate)
        return found

    def _members(self, members: list[Candidate], operators_s: float) -> None:
        """Asks for candidates of one size, whose operators take at least ``operators_s``."""
        for candidate in members:
            self._ask(operators_s + self._rest_s(candidate), candidate)

    def _rest_s(self, candidate: Candidate) -> float:
        """Least seconds of a candidate beside its operators; infinite when it cannot fit."""
        if candidate not in self._rests:
            count = self.fewest(candidate)
            if count is None:
                self._rests[candidate] = math.inf
            else:
                order = self.order(candidate)
                most = order.of(order.total)
                rest_s = fewest_weight_seconds(self.pricing.costs(candidate), most)
                rest_s += recompute_s(candidate, self._floor(candidate), order, count)
                self._rests[candidate] = rest_s
        return self._rests[candidate]

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

    def _candidate(self, candidate: Candidate) -> None:
        """Solves a candidate without memory limit, and makes the answer fit if it does not."""
        self._answered.add(candidate)
        count = self.fewest(candidate)
        assert count is not None
        problem = self.problem(candidate, count, limited=False)
        solution = solve(problem)
        if solution is None:
            return
        most = self.order(candidate).counts(self.policy)[1]
        found = self._repaired(candidate, solution, count, most)
        self.offer(found)
        if found is not None and found.count == count:
            self.proven_s = min(self.proven_s, solution.bound_s)
        elif all(len(node.choices) == 1 for node in problem.nodes):
            self.proven_s = min(self.proven_s, found.time_s if found else math.inf)
        else:
            self._ask(solution.bound_s, _Range(candidate, count, most))

    def _repaired(
        self, candidate: Candidate, solution: Solution, fewest: int, most: int
    ) -> Found | None:
        """These choices at the smallest count with which they fit: more blocks take less memory."""
        below = self.found(candidate, fewest, solution.choices)
        if self.fits(below):
            return below
        above = self.found(candidate, most, solution.choices)
        if not self.fits(above):
            return None
        guesses = _GUESSES
        while above.count - below.count > 1:
            middle = (below.count + above.count) // 2
            count = self._crossing(below, above) if guesses else middle
            guesses = max(0, guesses - 1)
            tried = self.found(candidate, count, solution.choices)
            if self.fits(tried):
                above = tried
            else:
                below = tried
        return above

    def _crossing(self, below: Found, above: Found) -> int:
        """The count between both at which a straight line of the memory meets the limit."""
        over = below.memory_pages - self.pricing.limit_pages
        share = over / (below.memory_pages - above.memory_pages)
        count = below.count + math.ceil(share * (above.count - below.count))
        return min(max(count, below.count + 1), above.count - 1)

    def _range(self, asked: _Range, gap: float) -> None:
        candidate, order = asked.candidate, self.order(asked.candidate)
        fewest, most = order.of(asked.fewest), order.of(asked.most)
        problem = self.pricing.problem(candidate, fewest, most)
        solution = solve(problem, relative_gap=gap, below_s=self.best_s)
        if solution is None:
            return
        self.offer(self._repaired(candidate, solution, asked.fewest, asked.most))
        if asked.fewest == asked.most:
            self.proven_s = min(self.proven_s, solution.bound_s)
            return
        middle = (asked.fewest + asked.most) // 2
        self._ask(solution.bound_s, _Range(candidate, asked.fewest, middle))
        self._ask(solution.bound_s, _Range(candidate, middle + 1, asked.most))
