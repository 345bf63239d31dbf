"""Bounds of offers stay below their plans, and sketches come close to them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autoplan.search.degrees import admissible_tp
from autoplan.search.pipeline.costs import whole_costs
from autoplan.search.pipeline.families import Families, Offer
from autoplan.search.pipeline.joint import JointSearch
from autoplan.search.pipeline.offer_bounds import OfferBounds
from autoplan.search.pipeline.offered import offers
from autoplan.search.pipeline.sketch import sketched_s
from autoplan.search.pricing import Pricing
from autoplan.search.regions.menus import Recompute
from autoplan.trace.stack import stack_of
from tests.unit.search_graphs import gated_mlp, job, small_cluster

CLUSTER = small_cluster()
GRAPH = gated_mlp(6, width=256, hidden=1024, tokens=2048)
WAYS: tuple[Recompute, ...] = ("free", "none", "full")


def pricing_of(part: float = 1.0) -> Pricing:
    """With so much of the memory that there is."""
    asked = replace(job(gpus=4, batch=16), planned_only=True)
    limit_bytes = int(part * CLUSTER.device.memory_bytes)
    return Pricing(GRAPH, replace(asked, memory_limit_bytes=limit_bytes), CLUSTER)


def offered(pricing: Pricing, count: int = 12) -> list[Offer]:
    """Some of all offers, spread evenly."""
    stack = stack_of(GRAPH)
    degrees = admissible_tp(GRAPH, pricing.job, pricing.strategies_of, pricing.overrides)
    every = offers(pricing, stack, degrees)
    return list(every[:: max(1, len(every) // count)])


@pytest.mark.parametrize("first", WAYS)
def test_bounds_rise_and_stay_below_plans(first):
    """In whatever order the ways of recomputing are looked at."""
    pricing = pricing_of()
    families = Families(pricing, stack_of(GRAPH))
    search = JointSearch(pricing, families)
    for offer in offered(pricing)[::2]:
        bounds = OfferBounds(pricing, families)
        for way in (first, *WAYS):
            each = Offer(config=offer.config, recompute=way)
            before = bounds.of(each)
            while not bounds.is_quick(each):
                bounds.advance(each)
                assert bounds.of(each) >= before
                before = bounds.of(each)
            found = search.finished(each)
            assert bounds.of(each) <= (found.step_s if found else math.inf) * (1 + 1e-9)
            bounds.raise_to(each, search.search(each).bound_s)
            assert bounds.of(each) <= (found.step_s if found else math.inf) * (1 + 1e-9)


def test_sketches_come_close_where_there_is_memory():
    """With one stage a rank: messages that hold up interleaved stages are not sketched."""
    pricing = pricing_of()
    families = Families(pricing, stack_of(GRAPH))
    search = JointSearch(pricing, families)
    for offer in [each for each in offered(pricing, 40) if each.config.stages_per_rank == 1][:16]:
        for way in ("free", "none", "full"):
            each = Offer(config=offer.config, recompute=way)
            family = families.of(each)
            about_s = sketched_s(
                whole_costs(pricing, family, each.config, family.any_boundary),
                family.keys,
                families.rates(each.config).objectives,
                families.ladder(each),
            )
            found = search.finished(each)
            assert found is not None
            assert about_s == pytest.approx(found.step_s, rel=0.2)
