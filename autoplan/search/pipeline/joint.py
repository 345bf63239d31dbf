"""The search over all configurations: the most promising first, until none can be better.

Every configuration has a bound: first that of its compute alone, then, when that is the lowest of
all, a quick one of its schedule, then that of its own search, which rises from round to round. The
configuration whose bound is lowest goes on, until the lowest is within the tolerance of the best
plan.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
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

_Key = tuple[int, int, Recompute]


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """A configuration, and what its blocks may recompute."""

    config: Config
    recompute: Recompute


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
        self._families: dict[_Key, Family] = {}
        self._quick: dict[_Key, QuickBounds] = {}
        self._searches: dict[Offer, ConfigSearch] = {}

    def best_of(
        self,
        offers: Sequence[Offer],
        *,
        tolerance: float = TOLERANCE,
        progress: Progress | None = None,
    ) -> Outcome:
        """The best plan of some configurations."""
        waiting = [(self._busy_s(offer), n, _Stage.BUSY) for n, offer in enumerate(offers)]
        heapq.heapify(waiting)
        best: tuple[Found, Offer] | None = None
        best_s = proven_s = math.inf
        looked_at: set[int] = set()
        while waiting:
            bound_s, number, stage = heapq.heappop(waiting)
            if bound_s >= best_s * (1 - tolerance):
                proven_s = min(proven_s, bound_s)
                break
            offer = offers[number]
            if stage is _Stage.BUSY:
                quick_s = max(bound_s, self._quick_of(offer).of(offer.config))
                heapq.heappush(waiting, (quick_s, number, _Stage.QUICK))
                continue
            search = self.search(offer)
            if not search.is_done:
                search.advance()
            looked_at.add(number)
            if search.best is not None and search.best.step_s < best_s:
                best, best_s = (search.best, offer), search.best.step_s
            bound_s = max(bound_s, search.bound_s)
            if search.is_done:
                proven_s = min(proven_s, bound_s)
            else:
                heapq.heappush(waiting, (bound_s, number, _Stage.ROUNDS))
            if progress is not None:
                progress(len(looked_at), len(offers), best_s if best else None)
        found = self.search(best[1]).finish() if best else None
        best_s = found.step_s if found else math.inf
        return Outcome(best=found, bound_s=min(proven_s, best_s), solved=len(looked_at))

    def search(self, offer: Offer) -> ConfigSearch:
        """The search of one configuration, as far as it has come."""
        if offer not in self._searches:
            family = self._family(offer)
            costs_at = partial(whole_costs, self._pricing, family, offer.config)
            self._searches[offer] = ConfigSearch(family, offer.config, costs_at)
        return self._searches[offer]

    def _busy_s(self, offer: Offer) -> float:
        memory = rank_memory(self._pricing, offer.config)
        return self._quick_of(offer).busy(offer.config, memory)

    def _quick_of(self, offer: Offer) -> QuickBounds:
        key = _key(offer)
        if key not in self._quick:
            self._quick[key] = QuickBounds(family=self._family(offer))
        return self._quick[key]

    def _family(self, offer: Offer) -> Family:
        key = _key(offer)
        if key not in self._families:
            self._families[key] = family(self._pricing, self._stack, *key)
        return self._families[key]


def _key(offer: Offer) -> _Key:
    return offer.config.tp, offer.config.microbatch, offer.recompute
