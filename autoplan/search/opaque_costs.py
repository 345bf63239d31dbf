"""What operators without a rule take in a plan: every rank of ``tp`` computes the whole of them."""

from __future__ import annotations

from autoplan.plan import OpaquePlan
from autoplan.search.pricing import Pricing
from autoplan.sharding.rules import opaque_operators


def opaque_of(pricing: Pricing, tp: int, microbatch: int) -> tuple[OpaquePlan, ...]:
    """The operators of a job's model that have no rule, in the order of their first calls.

    Args:
        tp, microbatch: of the plan; samples of one rank.
    """
    costs = pricing.microbatch(tp, microbatch)
    representative = pricing.graph.representative

    def seconds(call: str) -> float:
        (cost,) = costs.operators[costs.space.number[representative.get(call, call)]]
        return cost.forward_s + cost.backward_s

    return tuple(
        OpaquePlan(
            operator=found.name,
            calls=len(found.calls),
            first=found.calls[0],
            splits_batch=found.keeps_samples_apart,
            microbatch_s=sum(map(seconds, found.calls)),
        )
        for found in opaque_operators(pricing.graph)
    )
