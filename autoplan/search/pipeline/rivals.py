"""Plans beside the best one: the standard recipes, and the best of each kind that it is not.

Each alternative is the best plan of one configuration, solved for itself, so that its pins give it
back. Which configuration of its kind that is, bounds, sketches and the plans known so far tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autoplan.plan import Alternative
from autoplan.search.deadline import Deadline
from autoplan.search.pipeline.estimates import RankParts, busiest_parts
from autoplan.search.pipeline.families import Families, Offer
from autoplan.search.pipeline.joint import JointSearch
from autoplan.search.pipeline.offered import all_ways
from autoplan.search.pipeline.reasons import largest_category, slower
from autoplan.search.pipeline.solve import Found
from autoplan.search.pipeline.standard import Kind, recipes, runners_up
from autoplan.search.pricing import Pricing
from autoplan.search.regions.menus import Recompute

_GIB = 2**30
_UNLIMITED_BYTES = 2**50


class Rivals:
    """Finds the alternatives of one job, as many as there is time for."""

    def __init__(
        self,
        pricing: Pricing,
        families: Families,
        search: JointSearch,
        offered: tuple[Offer, ...],
        degrees: tuple[int, ...],
        deadline: Deadline | None = None,
    ) -> None:
        self._pricing = pricing
        self._search = search
        self._offered = offered
        self._degrees = degrees
        self._deadline = deadline or Deadline()
        unlimited = replace(pricing.job, memory_limit_bytes=_UNLIMITED_BYTES)
        self._unlimited = JointSearch(pricing.for_job(unlimited), families, deadline)

    def best_with_recipes(self, best: Found) -> tuple[Found, list[tuple[str, Found]]]:
        """The best plan, recipes counted, and each recipe's plan, whether it fits or not."""
        standard = []
        for kind in recipes(self._pricing.job, self._degrees):
            found = None if self._deadline.is_over else self._recipe(kind)
            if found is not None:
                standard.append((kind.name(found.config), found))
        fitting = [found for _, found in standard if self._fits(found)]
        fastest = min([best, *fitting], key=lambda found: found.step_s)
        return self._settled(fastest), standard

    def alternatives(self, best: Found, standard: list[tuple[str, Found]]) -> Iterator[Alternative]:
        """The recipes, then a good plan of each other kind, beside the best plan."""
        ours = busiest_parts(best)
        for name, found in standard:
            yield self._alternative(name, found, best, ours)
        for kind in runners_up(best.config, self._degrees):
            if self._deadline.is_over:
                return
            members = [offer for offer in self._offered if kind.accepts(offer.config)]
            found = self._search.good_of(members)
            if found is not None:
                name = kind.name(found.config)
                yield self._alternative(name, self._settled(found), best, ours)

    def _recipe(self, kind: Kind) -> Found | None:
        """A recipe's plan: a fast one that fits, or the smallest of its fastest where none does."""
        members = [
            Offer(config=offer.config, recompute=way)
            for offer in self._offered
            if kind.accepts(offer.config)
            for way in kind.recompute
            if offer.recompute in ("free", way)
        ]
        members = list(dict.fromkeys(members))
        found = self._search.good_of(members)
        if found is not None:
            ways: list[Recompute] = [
                each.recompute for each in members if each.config == found.config
            ]
            return self._search.settled(found.config, ways)
        return self._smallest(members)

    def _smallest(self, members: list[Offer]) -> Found | None:
        """Of the recipe's fastest plans, memory aside, recomputing or not, the smaller one."""
        found = []
        for way in dict.fromkeys(offer.recompute for offer in members):
            of_way = [offer for offer in members if offer.recompute == way]
            good = self._unlimited.good_of(of_way)
            found += [good] if good else []
        return min(found, key=_peak_bytes, default=None)

    def _settled(self, found: Found) -> Found:
        """The best plan with all decisions of another one that pins can name, which is then what
        these pins give."""
        ways = all_ways(self._pricing.job, found.config)
        return self._search.settled(found.config, ways) or found

    def _fits(self, found: Found) -> bool:
        return found.value.fits(self._pricing.limit_bytes)

    def _alternative(self, name: str, found: Found, best: Found, ours: RankParts) -> Alternative:
        config, fits = found.config, self._fits(found)
        if fits:
            reason = "this plan" if found is best else slower(ours, busiest_parts(found))
        else:
            fullest = max(found.value.memory, key=lambda memory: memory.total)
            over = (fullest.total - self._pricing.limit_bytes) / _GIB
            category, largest = largest_category(fullest)
            reason = f"does not fit by {over:.1f} GiB ({category}: {largest / _GIB:.1f} GiB)"
        return Alternative(
            name=name,
            mesh=config.mesh,
            zero=config.zero,
            num_microbatches=config.num_microbatches,
            recompute=_recompute_words(found),
            step_s=found.step_s,
            peak_memory_bytes=_peak_bytes(found),
            fits=fits,
            reason=reason,
            schedule=config.schedule or "none",
            stages_per_rank=config.stages_per_rank,
            replicas=config.replicas,
        )


def _peak_bytes(found: Found) -> int:
    return max(memory.total for memory in found.value.memory)


def _recompute_words(found: Found) -> str:
    """What runs again: nothing, every block, or some operators."""
    way = found.family.recompute
    return "by operator" if way == "free" else way
