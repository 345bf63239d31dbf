"""Plans beside the best one: the standard recipes, and the best of each kind that it is not.

Each alternative is the best plan of one configuration under one way of recomputing, solved for
itself, so that its pins give it back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autoplan.plan import Alternative
from autoplan.search.memory import largest_category
from autoplan.search.pipeline.estimates import estimate_of
from autoplan.search.pipeline.joint import JointSearch, Offer
from autoplan.search.pipeline.plans import recomputed_blocks
from autoplan.search.pipeline.solve import Found
from autoplan.search.pipeline.standard import Kind, recipes, runners_up
from autoplan.search.pricing import Pricing
from autoplan.search.rivals import slower
from autoplan.trace.stack import Stack

_GIB = 2**30
_UNLIMITED_BYTES = 2**50
# A runner-up need not be proven the best of its kind, but far fewer rounds show bad ones.
_RUNNER_UP_ROUNDS = 10


class Rivals:
    """Finds the alternatives of one job."""

    def __init__(
        self,
        pricing: Pricing,
        stack: Stack,
        search: JointSearch,
        offered: tuple[Offer, ...],
        degrees: tuple[int, ...],
    ) -> None:
        self._pricing = pricing
        self._search = search
        self._offered = offered
        self._degrees = degrees
        unlimited = replace(pricing.job, memory_limit_bytes=_UNLIMITED_BYTES)
        self._unlimited = JointSearch(pricing.for_job(unlimited), stack)

    def best_with_recipes(self, best: Found) -> tuple[Found, list[tuple[str, Found]]]:
        """The best plan, recipes counted, and each recipe's plan, whether it fits or not."""
        standard = []
        for kind in recipes(self._pricing.job, self._degrees):
            found = self._best_of(kind)
            if found is not None:
                standard.append((kind.name, found))
        fitting = [found for _, found in standard if self._fits(found)]
        return min([best, *fitting], key=lambda found: found.step_s), standard

    def alternatives(self, best: Found, standard: list[tuple[str, Found]]) -> Iterator[Alternative]:
        """The recipes, then the best of each other kind, beside the best plan."""
        for name, found in standard:
            yield self._alternative(name, found, best)
        for kind in runners_up(best.config, self._degrees):
            members = [offer for offer in self._offered if kind.accepts(offer.config)]
            outcome = self._search.best_of(members, most_rounds=_RUNNER_UP_ROUNDS)
            if outcome.best is not None:
                yield self._alternative(f"best found, {kind.name}", outcome.best, best)

    def _best_of(self, kind: Kind) -> Found | None:
        """The recipe's fastest plan that fits, or the smallest of its fastest where none does."""
        members = [
            Offer(config=offer.config, recompute=way)
            for offer in self._offered
            if kind.accepts(offer.config)
            for way in kind.recompute
            if offer.recompute in ("free", "blocks", way)
        ]
        found = self._search.best_of(members, most_rounds=_RUNNER_UP_ROUNDS).best
        if found is None and members:
            found = self._smallest(members)
        return found

    def _smallest(self, members: list[Offer]) -> Found | None:
        """Of the recipe's fastest plans, memory aside, recomputing or not, the smaller one."""
        found = []
        for way in dict.fromkeys(offer.recompute for offer in members):
            of_way = [offer for offer in members if offer.recompute == way]
            best = self._unlimited.best_of(of_way, most_rounds=_RUNNER_UP_ROUNDS).best
            found += [best] if best else []
        return min(found, key=_peak_bytes, default=None)

    def _fits(self, found: Found) -> bool:
        return found.value.fits(self._pricing.limit_bytes)

    def _alternative(self, name: str, found: Found, best: Found) -> Alternative:
        config, fits = found.config, self._fits(found)
        if fits:
            ours, theirs = (estimate_of(self._pricing, one) for one in (best, found))
            reason = "this plan" if found == best else slower(ours, theirs)
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
    """What runs again: nothing, every block, so many of them, or some operators."""
    if found.family.recompute == "free":
        return "by operator"
    blocks = recomputed_blocks(found)
    if all(blocks) or not any(blocks):
        return "full" if any(blocks) else "none"
    return f"{sum(blocks)} of {len(blocks)} blocks"
