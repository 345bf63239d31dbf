"""Seconds of exchanges over ``cp``, for one microbatch on one rank.

Ranks of a ``cp`` group lie ``tp`` apart. What an exchange moves is a rank's share on ``tp`` of the
tensor that it puts together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

from autoplan.search.conversion_costs import ConversionCost
from autoplan.search.folded_graph import FoldedSizes
from autoplan.search.space import Space
from autoplan.sharding.exchange import EXCHANGE, exchange_of
from autoplan.sharding.placement import local_fraction
from autoplan.sharding.redistribute import Message
from autoplan.sharding.strategies import Strategy
from autoplan.trace.graph import OpNode
from cost_models.collectives import CollectiveKind, collective_s
from hardware_profiles.spec import ClusterSpec


def exchange_costs(
    space: Space, sizes: FoldedSizes, cluster: ClusterSpec, gpus_per_node: int
) -> Mapping[str, tuple[ConversionCost, ...]]:
    """For each exchange that is no view, what its strategies on ``tp`` cost."""

    def seconds(sent: tuple[Message, ...], ranks: int) -> float:
        near = cp_ranks_per_node(ranks, space.tp, gpus_per_node)
        return sum(
            collective_s(cast(CollectiveKind, kind), nbytes, ranks, near, cluster)
            for kind, nbytes in sent
        )

    def cost(node: OpNode, strategy: Strategy) -> ConversionCost:
        exchange = exchange_of(node)
        read = sizes.meta(space.folded.operand(node, node.operands[0]))
        share = local_fraction(strategy.outputs[0], space.tp)
        whole_bytes = int(max(read.nbytes, node.outputs[0].nbytes) * share)
        forward, backward = exchange.messages(whole_bytes)
        return ConversionCost(
            forward_s=seconds(forward, exchange.ranks),
            backward_s=seconds(backward, exchange.ranks),
            forward=forward,
            backward=backward,
        )

    return {
        node.name: tuple(cost(node, strategy) for strategy in space.of(node.name))
        for node in sizes.nodes.values()
        if node.target == EXCHANGE and not all(node.alias_of)
    }


def cp_ranks_per_node(cp: int, tp: int, gpus_per_node: int) -> int:
    """Ranks of a ``cp`` group that share a node, in the worst placed group."""
    return 1 if gpus_per_node % tp else math.gcd(cp, gpus_per_node // tp)
