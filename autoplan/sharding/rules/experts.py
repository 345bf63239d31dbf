"""Layers of experts: tokens and experts are loops, everything within an expert stays whole.

A rank that has some of the experts computes their term for every token. It takes a stand-in, since
the numbers of its experts do not start at zero. Inner columns stay whole: one weight holds those of
the gate and then those of the product with it, and no contiguous shard of it has both.
"""

from __future__ import annotations

from autoplan.sharding.equation import Equation, LocalOp, equation
from autoplan.sharding.rules.base import Call


def _experts(call: Call) -> Equation:
    return equation(
        "t h, t k, t k, e g h, e n f -> t n",
        call.shapes,
        call.output_shapes,
        whole="h k g n f",
        local_ops={"e": LocalOp("own_experts")},
    )


RULES = {"autoplan.experts.default": _experts}
