"""Offers, and what they share: menus, quick bounds, ladders and rates, each made once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autoplan.search.pipeline.configs import Config
from autoplan.search.pipeline.family import Family, family
from autoplan.search.pipeline.objectives import Row, objectives
from autoplan.search.pipeline.quick_bounds import QuickBounds
from autoplan.search.pipeline.quick_room import QuickRoom
from autoplan.search.pipeline.rank_rates import RankRates
from autoplan.search.pipeline.sketch import Ladder, ladder_of
from autoplan.search.pricing import Pricing
from autoplan.search.regions.menus import Recompute
from autoplan.trace.stack import Stack, stack_of
from cost_models.schedules import PipelineShape


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """A configuration, and what its blocks may recompute."""

    config: Config
    recompute: Recompute


WIDER: dict[Recompute, tuple[Recompute, ...]] = {
    "none": ("free",),
    "full": ("free",),
    "free": (),
}
"""The ways of recomputing that have all plans of another one, of those that are searched."""

_Key = tuple[int, int, int, Recompute]


class Families:
    """What the offers of one model and batch share, whatever memory there is."""

    def __init__(self, pricing: Pricing, stack: Stack) -> None:
        self._pricing = pricing
        self._first = stack
        self._stacks: dict[int, Stack] = {}
        self._families: dict[_Key, Family] = {}
        self._quick: dict[_Key, QuickBounds] = {}
        self._room: dict[_Key, QuickRoom] = {}
        self._ladders: dict[_Key, Ladder] = {}
        self._rates: dict[tuple[int, PipelineShape], RankRates] = {}

    def of(self, offer: Offer) -> Family:
        """The menus of an offer."""
        key = _key(offer)
        if key not in self._families:
            wider = (_key(replace(offer, recompute=way)) for way in WIDER[offer.recompute])
            known = next((self._families[each] for each in wider if each in self._families), None)
            cp, tp, microbatch, way = key
            self._families[key] = family(
                self._pricing.at_cp(cp), self._stack(cp), tp, microbatch, way, known
            )
        return self._families[key]

    def quick(self, offer: Offer) -> QuickBounds:
        """The quick bounds of an offer's family."""
        key = _key(offer)
        if key not in self._quick:
            self._quick[key] = QuickBounds(family=self.of(offer))
        return self._quick[key]

    def room(self, offer: Offer) -> QuickRoom:
        """What no configuration of an offer's family can do without."""
        key = _key(offer)
        if key not in self._room:
            self._room[key] = QuickRoom(family=self.of(offer))
        return self._room[key]

    def ladder(self, offer: Offer) -> Ladder:
        """Columns of an offer's regions, from the fastest to the leanest."""
        key = _key(offer)
        if key not in self._ladders:
            self._ladders[key] = ladder_of(self.of(offer))
        return self._ladders[key]

    def rates(self, config: Config) -> RankRates:
        """What counts on the ranks of a configuration's schedule."""
        shape = config.shape
        key = config.cp, shape
        if key not in self._rates:
            is_block = tuple(bool(item.kind) for item in self._stack(config.cp).items)
            row = Row(is_block=is_block, shape=shape)
            self._rates[key] = RankRates(objectives=objectives(shape), row=row)
        return self._rates[key]

    def _stack(self, cp: int) -> Stack:
        graph = self._pricing.at_cp(cp).graph
        if graph is self._first.graph:
            return self._first
        if cp not in self._stacks:
            self._stacks[cp] = stack_of(graph)
        return self._stacks[cp]

    @property
    def without_calls(self) -> tuple[str, ...]:
        """Kinds of blocks of which single calls are not offered to run again, at some degree."""
        every = (family.menus.without_calls for family in self._families.values())
        return tuple(sorted(frozenset().union(*every)))


def _key(offer: Offer) -> _Key:
    return offer.config.cp, offer.config.tp, offer.config.microbatch, offer.recompute
