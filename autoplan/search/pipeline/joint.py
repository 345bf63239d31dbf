"""The search over all configurations: the most promising first, until none can be better.

Every configuration has a bound: first that of its operators as if each were alone, then, when that
is the lowest of all, that of its compute with messages over ``tp``, then a quick one of its
schedule, then that of its own search, which rises from round to round. The configuration whose
bound is lowest goes on, until the lowest is within the tolerance of the best plan.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

from autoplan.search.pipeline.configs import Config
from autoplan.search.pipeline.costs import rank_memory, whole_costs
from autoplan.search.pipeline.family import Family, family
from autoplan.search.pipeline.objectives import RankObjective, objectives
from autoplan.search.pipeline.quick_bounds import QuickBounds
from autoplan.search.pipeline.solve import TOLERANCE, ConfigSearch, Found
from autoplan.search.pricing import Pricing
from autoplan.search.proof import Counted
from autoplan.search.regions.menus import Recompute
from autoplan.trace.stack import Stack
from cost_models.schedules import PipelineShape

_Key = tuple[int, int, Recompute]


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """A configuration, and what its blocks may recompute."""

    config: Config
    recompute: Recompute


class _Stage(IntEnum):
    """How a configuration's bound was found."""

    ALONE = 0
    BUSY = 1
    QUICK = 2
    ROUNDS = 3


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
        self._operators: dict[tuple[int, int], float] = {}
        self._objectives: dict[PipelineShape, tuple[RankObjective, ...]] = {}
        metas = [node.outputs[0] for node in pricing.graph.of_kind("parameter")]
        self._trained = sum(meta.numel for meta in metas if meta.requires_grad)
        self._frozen = sum(meta.numel for meta in metas if not meta.requires_grad)

    def best_of(
        self,
        offers: Sequence[Offer],
        *,
        tolerance: float = TOLERANCE,
        most_rounds: int | None = None,
        progress: Counted | None = None,
    ) -> Outcome:
        """The best plan of some configurations.

        Args:
            offers: those to search.
            tolerance: how far from the best the plan may be.
            most_rounds: end when there is a plan after so many rounds, proven or not.
            progress: called with the configurations looked at, their number, and the best step.
        """
        waiting = [(self._alone_s(offer), n, _Stage.ALONE) for n, offer in enumerate(offers)]
        heapq.heapify(waiting)
        best: tuple[Found, Offer] | None = None
        best_s = proven_s = math.inf
        looked_at: set[int] = set()
        rounds = 0
        while waiting:
            bound_s, number, stage = heapq.heappop(waiting)
            is_enough = best is not None and most_rounds is not None and rounds >= most_rounds
            if is_enough or bound_s >= best_s * (1 - tolerance):
                proven_s = min(proven_s, bound_s)
                break
            offer = offers[number]
            if stage < _Stage.QUICK:
                raised_s = max(bound_s, self._raised_s(offer, stage))
                heapq.heappush(waiting, (raised_s, number, _Stage(stage + 1)))
                continue
            search = self.search(offer)
            if not search.is_done:
                search.advance(best_s * (1 - tolerance))
                rounds += 1
            looked_at.add(number)
            if search.best is not None and search.best.step_s < best_s:
                best, best_s = (search.best, offer), search.best.step_s
            bound_s = max(bound_s, search.bound_s)
            if search.is_done:
                proven_s = min(proven_s, bound_s)
            else:
                heapq.heappush(waiting, (bound_s, number, _Stage.ROUNDS))
                if bound_s >= best_s * (1 - tolerance):
                    del self._searches[offer]
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
            counted = self._objectives_of(offer.config)
            self._searches[offer] = ConfigSearch(family, offer.config, costs_at, counted)
        return self._searches[offer]

    def _alone_s(self, offer: Offer) -> float:
        """Operators of the fullest rank, each at its fastest; inf where the weights do not fit."""
        config = offer.config
        key = config.tp, config.microbatch
        if not self._weights_fit(config):
            return math.inf
        if key not in self._operators:
            self._operators[key] = fastest_operators_s(self._pricing, *key)
        return config.num_microbatches * self._operators[key] / config.pp

    def _raised_s(self, offer: Offer, stage: _Stage) -> float:
        """The bound behind that of a stage."""
        if stage is _Stage.ALONE:
            return self._quick_of(offer).busy(offer.config)
        return self._quick_of(offer).of(offer.config, self._objectives_of(offer.config))

    def _weights_fit(self, config: Config) -> bool:
        """Whether parameters fit if every rank stored as few as it can."""
        memory = rank_memory(self._pricing, config)
        held = memory.held_per_trained * self._trained + memory.held_per_frozen * self._frozen
        room = memory.limit_bytes - memory.fixed_bytes
        return held / config.tp <= config.pp * room

    def _objectives_of(self, config: Config) -> tuple[RankObjective, ...]:
        shape = config.shape
        if shape not in self._objectives:
            self._objectives[shape] = objectives(shape)
        return self._objectives[shape]

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


def fastest_operators_s(pricing: Pricing, tp: int, microbatch: int) -> float:
    """Seconds of all operators of one microbatch on one rank, each at its fastest."""
    costs, _ = pricing.microbatch(tp, microbatch)
    space = costs.space
    return sum(
        space.folded.copies(region) * min(cost.forward_s + cost.backward_s for cost in options)
        for region, options in zip(space.regions, costs.operators, strict=True)
    )


def _key(offer: Offer) -> _Key:
    return offer.config.tp, offer.config.microbatch, offer.recompute
