"""The search over all configurations: the most promising first, until none can be better.

Every configuration has a bound (``offer_bounds``), which rises from round to round of its own
search. The configuration whose bound is lowest goes on, until the lowest is within the tolerance of
the best plan.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from autoplan.search.deadline import Deadline
from autoplan.search.pipeline.configs import Config
from autoplan.search.pipeline.costs import whole_costs
from autoplan.search.pipeline.families import Families, Offer
from autoplan.search.pipeline.objectives import RankObjective
from autoplan.search.pipeline.offer_bounds import OfferBounds
from autoplan.search.pipeline.sketch import Ladder, first_prices, sketched_s
from autoplan.search.pipeline.solve import TOLERANCE, ConfigSearch, Found
from autoplan.search.pipeline.whole import WholeCosts
from autoplan.search.pricing import Pricing
from autoplan.search.proof import Counted
from autoplan.search.regions.menus import Recompute

_MOST_SKETCHED = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The best plan, if any fits, and what no plan can be faster than.

    Attributes:
        is_cut: the deadline came before the end.
    """

    best: Found | None
    bound_s: float
    is_cut: bool = False


class JointSearch:
    """Searches configurations of one job; remembers their bounds and the plans found.

    Attributes:
        bounds: of all that was looked at.
    """

    def __init__(
        self, pricing: Pricing, families: Families, deadline: Deadline | None = None
    ) -> None:
        self.bounds = OfferBounds(pricing, families)
        self._pricing = pricing
        self._families = families
        self._deadline = deadline or Deadline()
        self._searches: dict[Offer, ConfigSearch] = {}
        self._plans: dict[Offer, Found] = {}
        self._sketches: dict[Offer, float] = {}

    def best_of(
        self,
        offers: Sequence[Offer],
        *,
        is_enough: bool = False,
        progress: Counted | None = None,
    ) -> Outcome:
        """The best plan of some configurations, but for ``TOLERANCE``.

        Args:
            offers: those to search.
            is_enough: whether any plan is.
            progress: called with the configurations looked at, their number, and the best step.
        """
        waiting = [(self.bounds.of(offer), number) for number, offer in enumerate(offers)]
        heapq.heapify(waiting)
        best = self.best_known(offers)
        best_s = self._step_s(best) if best else math.inf
        proven_s = math.inf
        looked_at: set[int] = set()
        is_cut = False
        while waiting:
            bound_s, number = heapq.heappop(waiting)
            is_cut = bound_s < best_s * (1 - TOLERANCE) and self._deadline.is_over
            if (best and is_enough) or is_cut or bound_s >= best_s * (1 - TOLERANCE):
                proven_s = min(proven_s, bound_s)
                break
            offer = offers[number]
            if not self.bounds.is_quick(offer):
                self.bounds.advance(offer)
                heapq.heappush(waiting, (self.bounds.of(offer), number))
                continue
            looked_at.add(number)
            is_done = self._advance(offer, best_s * (1 - TOLERANCE))
            if self._step_s(offer) < best_s:
                best, best_s = offer, self._step_s(offer)
                self._drop_beaten(offer)
            bound_s = self.bounds.of(offer)
            if is_done:
                proven_s = min(proven_s, bound_s)
            else:
                heapq.heappush(waiting, (bound_s, number))
                if bound_s >= best_s:
                    del self._searches[offer]
            if progress is not None:
                progress(len(looked_at), len(offers), best_s if best else None)
        found = self.finished(best) if best else None
        for number in () if is_enough else sorted(looked_at):
            found = self._faster(offers[number], found) or found
        best_s = found.step_s if found else math.inf
        return Outcome(best=found, bound_s=min(proven_s, best_s), is_cut=is_cut)

    def good_of(self, offers: Sequence[Offer]) -> Found | None:
        """A good plan of some configurations, if any fits, for the price of one search: the best
        that is known, or that of the configuration which is sketched to be the fastest."""
        known, sketched = self.best_known(offers), self._best_sketched(offers)
        known_s = self._step_s(known) if known else math.inf
        taken = [known] if known else []
        if sketched is not None and self._sketched_s(sketched) < known_s:
            taken.append(sketched)
        found = [plan for plan in map(self.finished, taken) if plan is not None]
        if found:
            return min(found, key=lambda plan: plan.step_s)
        return self.best_of(offers, is_enough=True).best

    def settled(self, config: Config, ways: Iterable[Recompute]) -> Found | None:
        """The best plan of a configuration and some ways of recomputing: the same whatever else is
        searched."""
        best: Found | None = None
        for way in ways:
            best = self._faster(Offer(config=config, recompute=way), best) or best
        return best

    def _faster(self, offer: Offer, known: Found | None) -> Found | None:
        """A plan that is faster than one that is known, if all rounds of a configuration find it.

        Close to the best, where ``best_of`` leaves off, one search's plan may still be faster.
        """
        known_s = known.step_s if known else math.inf
        while self.bounds.of(offer) < min(known_s, self._step_s(offer)):
            if self._deadline.is_over or self._advance(offer, known_s):
                break
        return self._plans[offer] if self._step_s(offer) < known_s else None

    def _drop_beaten(self, best: Offer) -> None:
        """Frees searches that are under way, of which no plan is faster than the best."""
        for offer, search in list(self._searches.items()):
            is_beaten = self.bounds.of(offer) >= self._step_s(best)
            if is_beaten and not search.is_done and offer != best:
                del self._searches[offer]

    def _step_s(self, offer: Offer) -> float:
        """The fastest plan of a configuration that is known."""
        return self._plans[offer].step_s if offer in self._plans else math.inf

    def _best_sketched(self, offers: Sequence[Offer]) -> Offer | None:
        """The offer with the fastest sketch, of those with the lowest bounds."""
        waiting = [(self.bounds.of(offer), number) for number, offer in enumerate(offers)]
        heapq.heapify(waiting)
        best, best_s, count = None, math.inf, 0
        while waiting and (count < _MOST_SKETCHED or best is None):
            bound_s, number = heapq.heappop(waiting)
            offer = offers[number]
            if bound_s >= best_s:
                break
            if not self.bounds.is_quick(offer):
                self.bounds.advance(offer)
                heapq.heappush(waiting, (self.bounds.of(offer), number))
                continue
            count += 1
            if self._sketched_s(offer) < best_s:
                best, best_s = offer, self._sketched_s(offer)
        return best

    def _sketched_s(self, offer: Offer) -> float:
        if offer not in self._sketches:
            self._sketches[offer] = sketched_s(*self._sketched(offer))
        return self._sketches[offer]

    def _first_prices(self, offer: Offer) -> list[float]:
        return first_prices(*self._sketched(offer))

    def _sketched(
        self, offer: Offer
    ) -> tuple[WholeCosts, Sequence[str], Sequence[RankObjective], Ladder]:
        family = self._families.of(offer)
        return (
            whole_costs(self._pricing, family, offer.config, family.any_boundary),
            family.keys,
            self._families.rates(offer.config).objectives,
            self._families.ladder(offer),
        )

    def best_known(self, offers: Iterable[Offer]) -> Offer | None:
        """The offer with the fastest plan found so far, if there is any."""
        known = [offer for offer in offers if offer in self._plans]
        return min(known, key=self._step_s, default=None)

    def finished(self, offer: Offer) -> Found | None:
        """The best plan of one configuration: the same whatever else is searched, given time."""
        if self._deadline.is_over and offer in self._plans:
            return self._plans[offer]
        found = self.search(offer).finish()
        self._note(offer)
        return found

    def search(self, offer: Offer) -> ConfigSearch:
        """The search of one configuration, as far as it has come."""
        if offer not in self._searches:
            family = self._families.of(offer)
            costs_at = partial(whole_costs, self._pricing, family, offer.config)
            rates = self._families.rates(offer.config)
            starts = partial(self._first_prices, offer)
            self._searches[offer] = ConfigSearch(family, offer.config, costs_at, rates, starts)
        return self._searches[offer]

    def _advance(self, offer: Offer, below_s: float) -> bool:
        """One round of a configuration; whether it was the last."""
        search = self.search(offer)
        if not search.is_done:
            search.advance(below_s)
        self._note(offer)
        return search.is_done

    def _note(self, offer: Offer) -> None:
        search = self._searches[offer]
        self.bounds.raise_to(offer, search.bound_s)
        if search.best is not None:
            self._plans[offer] = search.best
