"""The search over all configurations: the most promising first, until none can be better.

Every configuration has a bound: first that of its compute alone, then, when that is the lowest of
all, a quick one of its schedule, then that of its own search, which rises from round to round. The
configuration whose bound is lowest goes on, until the lowest is within the tolerance of the best
plan.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

from autoplan.search.pipeline.configs import Config
from autoplan.search.pipeline.costs import rank_memory, whole_costs
from autoplan.search.pipeline.family import Family, family
from autoplan.search.pipeline.quick_bounds import QuickBounds
from autoplan.search.pipeline.solve import TOLERANCE, ConfigSearch, Found
from autoplan.search.pricing import Pricing
from autoplan.search.regions.menus import Recompute
from autoplan.trace.stack import Stack


class _Stage(IntEnum):
    """How a configuration's bound was found."""

    BUSY = 0
    QUICK = 1
    ROUNDS = 2


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
        self._searches: dict[tuple[Config, Recompute], ConfigSearch] = {}

    def best_of(
        self,
        configs: Iterable[Config],
        recompute: Recompute = "free",
        *,
        tolerance: float = TOLERANCE,
        progress: Progress | None = None,
    ) -> Outcome:
        """The best plan of some configurations."""
        offered = tuple(configs)
        waiting = [
            (self._busy_s(config, recompute), number, _Stage.BUSY)
            for number, config in enumerate(offered)
        ]
        heapq.heapify(waiting)
        best: Found | None = None
        proven_s = math.inf
        looked_at: set[int] = set()
        while waiting:
            bound_s, number, stage = heapq.heappop(waiting)
            best_s = best.step_s if best else math.inf
            if bound_s >= best_s * (1 - tolerance):
                proven_s = min(proven_s, bound_s)
                break
            config = offered[number]
            if stage is _Stage.BUSY:
                quick_s = max(bound_s, self._quick_of(config, recompute).of(config))
                heapq.heappush(waiting, (quick_s, number, _Stage.QUICK))
                continue
            search = self.search(config, recompute)
            if not search.is_done:
                search.advance()
            looked_at.add(number)
            if search.best is not None and search.best.step_s < best_s:
                best = search.best
            if search.is_done:
                proven_s = min(proven_s, max(bound_s, search.bound_s))
            else:
                heapq.heappush(waiting, (max(bound_s, search.bound_s), number, _Stage.ROUNDS))
            if progress is not None:
                progress(len(looked_at), len(offered), best.step_s if best else None)
        if best is not None:
            best = self.search(best.config, recompute).finish()
        best_s = best.step_s if best else math.inf
        return Outcome(best=best, bound_s=min(proven_s, best_s), solved=len(looked_at))

    def search(self, config: Config, recompute: Recompute) -> ConfigSearch:
        """The search of one configuration, as far as it has come."""
        key = config, recompute
        if key not in self._searches:
            family = self._family(config, recompute)
            costs_at = partial(whole_costs, self._pricing, family, config)
            self._searches[key] = ConfigSearch(family, config, costs_at)
        return self._searches[key]

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
