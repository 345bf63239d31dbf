"""Lower bounds of offers, from those that cost nothing to those of a search; all are remembered.

First comes that of the operators as if each were alone, then that of compute with messages over
``tp`` and ``cp``, then a quick one of the schedule, then whether blocks can fit, and then what the
offer's own search says. What bounds all ways of recomputing bounds each of them; where memory is
not looked at, it is as good.
"""

from __future__ import annotations

import math
from enum import IntEnum

from autoplan.search.pipeline.configs import Config
from autoplan.search.pipeline.costs import rank_memory
from autoplan.search.pipeline.families import WIDER, Families, Offer
from autoplan.search.pricing import Pricing


class _Level(IntEnum):
    """How a bound was found."""

    ALONE = 0
    BUSY = 1
    QUICK = 2


class OfferBounds:
    """Bounds of the offers of one job, in seconds of a step; inf where nothing fits."""

    def __init__(self, pricing: Pricing, families: Families) -> None:
        self._pricing = pricing
        self._families = families
        self._known: dict[Offer, float] = {}
        self._levels: dict[Offer, _Level] = {}
        self._weighed: set[Offer] = set()
        self._operators: dict[tuple[int, int, int], float] = {}
        metas = [node.outputs[0] for node in pricing.graph.of_kind("parameter")]
        self._trained = sum(meta.numel for meta in metas if meta.requires_grad)
        self._frozen = sum(meta.numel for meta in metas if not meta.requires_grad)

    def of(self, offer: Offer) -> float:
        """The highest bound that is known."""
        if offer not in self._known:
            self._known[offer] = self._alone_s(offer.config)
            self._levels[offer] = _Level.ALONE
        return max(self._known[each] for each in (offer, *self._wider(offer)))

    def is_quick(self, offer: Offer) -> bool:
        """Whether only a search can raise the bound."""
        return offer in self._weighed

    def advance(self, offer: Offer) -> None:
        """Takes the next bound that needs no search."""
        widest = self._widest(offer)
        if self._levels[widest] is _Level.QUICK:
            self._weigh(offer)
            return
        bound_s, quick = self.of(widest), self._families.quick(widest)
        if self._levels[widest] is _Level.ALONE:
            raised_s = quick.busy(offer.config)
        else:
            raised_s = quick.of(offer.config, self._families.rates(offer.config))
        self._levels[widest] = _Level(self._levels[widest] + 1)
        self._known[widest] = max(bound_s, raised_s)

    def _weigh(self, offer: Offer) -> None:
        """Whether memory can hold all blocks as the offer recomputes."""
        self._weighed.add(offer)
        memory = rank_memory(self._pricing, offer.config)
        if not self._families.room(offer).fits(self._families.rates(offer.config), memory):
            self._known[offer] = math.inf

    def raise_to(self, offer: Offer, bound_s: float) -> None:
        """Takes what a search has found."""
        self._known[offer] = max(self.of(offer), bound_s)

    def _wider(self, offer: Offer) -> list[Offer]:
        """Offers looked at that have all plans of one, the widest first."""
        wider = (Offer(config=offer.config, recompute=way) for way in WIDER[offer.recompute])
        return [each for each in wider if each in self._known]

    def _widest(self, offer: Offer) -> Offer:
        return next(iter(self._wider(offer)), offer)

    def _alone_s(self, config: Config) -> float:
        """Operators of the fullest rank, each at its fastest; inf where the weights do not fit."""
        key = config.cp, config.tp, config.microbatch
        if not self._weights_fit(config):
            return math.inf
        if key not in self._operators:
            cp, tp, microbatch = key
            self._operators[key] = fastest_operators_s(self._pricing.at_cp(cp), tp, microbatch)
        return config.num_microbatches * self._operators[key] / config.pp

    def _weights_fit(self, config: Config) -> bool:
        """Whether parameters fit if every rank stored as few as it can."""
        memory = rank_memory(self._pricing, config)
        held = memory.held_per_trained * self._trained + memory.held_per_frozen * self._frozen
        room = memory.limit_bytes - memory.fixed_bytes
        return held / config.tp <= config.pp * room


def fastest_operators_s(pricing: Pricing, tp: int, microbatch: int) -> float:
    """Seconds of all operators of one microbatch on one rank, each at its fastest."""
    costs = pricing.microbatch(tp, microbatch)
    space = costs.space
    return sum(
        space.folded.copies(region) * min(cost.forward_s + cost.backward_s for cost in options)
        for region, options in zip(space.regions, costs.operators, strict=True)
    )
