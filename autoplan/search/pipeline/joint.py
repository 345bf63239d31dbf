"""The search over all configurations: the most promising first, until none can be better.

Every configuration has a bound: first that of its compute alone, then, when that is the lowest of
all, a quick one of its schedule. The configuration whose quick bound is lowest is solved, and the
search ends when the lowest bound that is left is within the tolerance of the best plan.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from autoplan.search.pipeline.configs import Config
from autoplan.search.pipeline.costs import rank_memory
from autoplan.search.pipeline.family import Family, family
from autoplan.search.pipeline.quick_bounds import QuickBounds
from autoplan.search.pipeline.solve import ConfigSearch, Found, Solved
from autoplan.search.pricing import Pricing
from autoplan.search.regions.menus import Recompute
from autoplan.trace.stack import Stack

TOLERANCE = 1e-3
"""How far from the best of all plans the search may end."""

Progress = Callable[[int, int, float | None], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The best plan, if any fits, and what no plan can be faster than."""

    best: Found | None
    bound_s: float
    solved: int


class JointSearch:
    """Searches configurations of one job; remembers families and solved configurations."""

    def __init__(self, pricing: Pricing, stack: Stack) -> None:
        self._pricing = pricing
        self._stack = stack
        self._families: dict[tuple[int, int, Recompute], Family] = {}
        self._quick: dict[tuple[int, int, Recompute], QuickBounds] = {}
        self._solved: dict[tuple[Config, Recompute], Solved] = {}

    def best_of(
        self,
        configs: Iterable[Config],
        recompute: Recompute = "free",
        *,
        tolerance: float = TOLERANCE,
        progress: Progress | None = None,
    ) -> Outcome:
        """The best plan of some configurations."""
        waiting = [
            (self._busy_s(config, recompute), number, False, config)
            for number, config in enumerate(configs)
        ]
        total = len(waiting)
        heapq.heapify(waiting)
        best: Found | None = None
        proven_s, solved = math.inf, 0
        while waiting:
            bound_s, number, is_quick, config = heapq.heappop(waiting)
            best_s = best.step_s if best else math.inf
            if bound_s >= best_s * (1 - tolerance):
                proven_s = min(proven_s, bound_s)
                break
            if not is_quick:
                quick_s = max(bound_s, self._quick_of(config, recompute).of(config))
                heapq.heappush(waiting, (quick_s, number, True, config))
                continue
            found = self.solved(config, recompute, below_s=best_s * (1 - tolerance))
            solved += 1
            proven_s = min(proven_s, max(bound_s, found.bound_s))
            if found.best is not None and found.best.step_s < best_s:
                best = found.best
            if progress is not None:
                progress(solved, total, best.step_s if best else None)
        best_s = best.step_s if best else math.inf
        return Outcome(best=best, bound_s=min(proven_s, best_s), solved=solved)

    def solved(self, config: Config, recompute: Recompute, *, below_s: float = math.inf) -> Solved:
        """The best plan of one configuration; one of ``below_s`` or more may be left out."""
        key = config, recompute
        known = self._solved.get(key)
        if known is not None and (known.best is not None or known.bound_s >= below_s):
            return known
        search = ConfigSearch(self._pricing, self._family(config, recompute), config)
        self._solved[key] = search.run(TOLERANCE / 2, below_s)
        return self._solved[key]

    def _busy_s(self, config: Config, recompute: Recompute) -> float:
        quick = self._quick_of(config, recompute)
        return quick.busy(config, rank_memory(self._pricing, config))

    def _quick_of(self, config: Config, recompute: Recompute) -> QuickBounds:
        key = config.tp, config.microbatch, recompute
        if key not in self._quick:
            self._quick[key] = QuickBounds(family=self._family(config, recompute))
        return self._quick[key]

    def _family(self, config: Config, recompute: Recompute) -> Family:
        key = config.tp, config.microbatch, recompute
        if key not in self._families:
            self._families[key] = family(
                self._pricing, self._stack, config.tp, config.microbatch, recompute
            )
        return self._families[key]
