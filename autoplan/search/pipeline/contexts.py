"""Over how many ranks the tokens of samples may be split, and the model of one of them for each.

The runtime does not split tokens yet (``cp``), so that only jobs that also ask for what can be
planned alone have more than one degree: the one that is pinned, or all that leave a rank enough
tokens for the messages about keys and values to pay (``kernels.LEAST_QUERIES``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autoplan.errors import PlanError
from autoplan.search.degrees import admissible_tp
from autoplan.search.kernels import LEAST_QUERIES
from autoplan.search.pins import divisors
from autoplan.search.pipeline.families import Offer
from autoplan.search.pipeline.offered import offers
from autoplan.search.pricing import Pricing
from autoplan.sharding.context import fewest_tokens
from autoplan.trace.stack import Stack, stack_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """A model with its tokens split over ``pricing.cp`` ranks, and the degrees of ``tp`` there."""

    pricing: Pricing
    stack: Stack
    degrees: tuple[int, ...]


def contexts(pricing: Pricing) -> tuple[Context, ...]:
    """The model at every ``cp`` that the job allows, the smallest first; one at least.

    Raises:
        PlanError: the pinned ``cp`` cannot split the tokens, or the pins leave no ``tp``.
    """
    pinned, found, refused = pricing.job.pins.cp, list[Context](), list[PlanError]()
    for cp in _degrees(pricing) if pinned is None else (pinned,):
        try:
            found.append(_context(pricing, cp))
        except PlanError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    return tuple(found)


def offers_of(found: Iterable[Context]) -> tuple[Offer, ...]:
    """All configurations that the job allows at these degrees of ``cp``.

    Raises:
        PlanError: as ``offered.offers``.
    """
    return tuple(
        offer for each in found for offer in offers(each.pricing, each.stack, each.degrees)
    )


def _degrees(pricing: Pricing) -> tuple[int, ...]:
    """Those worth planning."""
    job, pins = pricing.job, pricing.job.pins
    if not job.planned_only:
        return (1,)
    left = job.world_size // ((pins.pp or 1) * (pins.dp or 1) * (pins.tp or 1))
    most = fewest_tokens(pricing.whole_graph) // LEAST_QUERIES
    return tuple(cp for cp in divisors(left) if cp == 1 or cp <= most)


def _context(pricing: Pricing, cp: int) -> Context:
    found = pricing.at_cp(cp)
    return Context(
        pricing=found,
        stack=stack_of(found.graph),
        degrees=admissible_tp(found.graph, found.job, found.strategies_of, found.overrides, cp=cp),
    )
