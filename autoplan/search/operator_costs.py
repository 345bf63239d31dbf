"""Seconds and passing bytes of operators and conversions for one microbatch on one rank.

An operator takes the time of its kernels on the rank's shards (``kernels``). An operator whose
outputs all share an operand's storage costs nothing; one that reads a piece of a parameter costs
what the host takes for it, where that shows. Conversions on ``tp`` stand in the way of the compute
that needs them, so they count in full (``conversion_costs``), and so do exchanges over ``cp``,
which are calls of the graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from autoplan.search.conversion_costs import ConversionCost, ConversionPricer
from autoplan.search.exchange_costs import exchange_costs
from autoplan.search.folded_graph import FoldedGraph, FoldedSizes
from autoplan.search.kernels import kernels_of
from autoplan.search.space import Space
from autoplan.sharding.placement import Placement, local_fraction
from autoplan.sharding.strategies import Strategy
from autoplan.trace.graph import OpNode, Ref, TensorMeta
from cost_models.compute import kernel_s
from cost_models.host_work import piece_read_s
from cost_models.work import Work
from hardware_profiles.spec import ClusterSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class OpCost:
    """One operator under one strategy: seconds of one microbatch, bytes beside what is kept.

    ``backward_weight_s`` is the part of ``backward_s`` that makes gradients of parameters.
    ``transient_bytes`` are what the forward reads and makes, or the gradients of all that in the
    backward, with what lives within the operator only.
    """

    forward_s: float = 0.0
    backward_s: float = 0.0
    backward_weight_s: float = 0.0
    transient_bytes: float = 0.0


NO_COST = OpCost()


@dataclass(frozen=True, kw_only=True, slots=True)
class MicrobatchCosts:
    """Costs of every choice of a space for one microbatch.

    Attributes:
        operators: by decision, then by choice.
        exchanges: of those that are messages over ``cp``, by name, then by choice.
        converter: prices any conversion of the space.
    """

    space: Space
    sizes: FoldedSizes
    operators: tuple[tuple[OpCost, ...], ...]
    converter: ConversionPricer
    exchanges: Mapping[str, tuple[ConversionCost, ...]] = field(default_factory=dict)


def microbatch_costs(
    space: Space, microbatch: int, cluster: ClusterSpec, gpus_per_node: int
) -> MicrobatchCosts:
    """Prices all choices for a microbatch of so many samples per rank."""
    sizes = space.folded.at_batch(microbatch)
    exchanges = exchange_costs(space, sizes, cluster, gpus_per_node)
    pricer = _Pricer(space, sizes, cluster, exchanges)
    converter = ConversionPricer(
        tp=space.tp, cluster=cluster, ranks_per_node=tp_ranks_per_node(space.tp, gpus_per_node)
    )
    return MicrobatchCosts(
        space=space,
        sizes=sizes,
        operators=tuple(
            pricer.operators(name, options)
            for name, options in zip(space.names, space.strategies, strict=True)
        ),
        converter=converter,
        exchanges=exchanges,
    )


def tp_ranks_per_node(tp: int, gpus_per_node: int) -> int:
    """Ranks of a ``tp`` group (neighbours) that share a node, in the worst placed group."""
    return math.gcd(tp, gpus_per_node)


def distinct_operands(
    node: OpNode, strategy: Strategy, folded: FoldedGraph, sizes: FoldedSizes
) -> Iterable[tuple[TensorMeta, Placement, bool]]:
    """What a call reads: each tensor once per placement, and whether it is a parameter."""
    seen = set()
    for ref, port in zip(node.operands, strategy.inputs, strict=True):
        key = ref, port.placement
        if key not in seen:
            seen.add(key)
            source = folded.operand(node, ref)
            yield sizes.meta(source), port.placement, _is_parameter(source, sizes)


def _is_parameter(source: Ref, sizes: FoldedSizes) -> bool:
    return source.node in sizes.nodes and sizes.nodes[source.node].kind == "parameter"


@dataclass(frozen=True, slots=True)
class _Pricer:
    space: Space
    sizes: FoldedSizes
    cluster: ClusterSpec
    exchanges: Mapping[str, tuple[ConversionCost, ...]]

    def operators(self, name: str, options: tuple[Strategy, ...]) -> tuple[OpCost, ...]:
        node = self.sizes.nodes.get(name)
        if node is None or node.kind != "call" or (node.alias_of and all(node.alias_of)):
            return (NO_COST,) * len(options)
        if name in self.exchanges:
            costs = zip(options, self.exchanges[name], strict=True)
            return tuple(self._exchange(node, strategy, cost) for strategy, cost in costs)
        return tuple(self._operator(node, strategy) for strategy in options)

    def _exchange(self, node: OpNode, strategy: Strategy, cost: ConversionCost) -> OpCost:
        """What is read and made passes; messages take the time."""
        (meta,) = self.sizes.nodes[node.name].outputs
        read = self.sizes.meta(self.space.folded.operand(node, node.operands[0]))
        return OpCost(
            forward_s=cost.forward_s,
            backward_s=cost.backward_s,
            transient_bytes=read.nbytes
            * local_fraction(strategy.inputs[0].placement, self.space.tp)
            + meta.nbytes * local_fraction(strategy.outputs[0], self.space.tp),
        )

    def _operator(self, node: OpNode, strategy: Strategy) -> OpCost:
        tp = self.space.tp
        read = list(distinct_operands(node, strategy, self.space.folded, self.sizes))
        inputs = sum(meta.nbytes * local_fraction(at, tp) for meta, at, _ in read)
        outputs = sum(
            meta.nbytes * local_fraction(at, tp)
            for meta, at in zip(node.outputs, strategy.outputs, strict=True)
        )
        moved = inputs + outputs
        differentiable = any(meta.requires_grad for meta in node.outputs)
        sources = [self.space.folded.operand(node, ref) for ref in node.operands]
        whole = [self.sizes.meta(source) for source in sources]
        stored = [_is_parameter(source, self.sizes) for source in sources]
        found = kernels_of(node, whole, moved, strategy, tp, stored)
        reading_s = piece_read_s(self.cluster.device) * sum(stored) * (tp > 1 and differentiable)
        return OpCost(
            forward_s=self._seconds(found.forward),
            backward_s=self._seconds(found.backward) + reading_s if differentiable else 0.0,
            backward_weight_s=self._seconds(found.backward_weight) if differentiable else 0.0,
            transient_bytes=moved + found.inner_bytes,
        )

    def _seconds(self, kernels: tuple[Work, ...]) -> float:
        return sum(kernel_s(kernel, self.cluster.device) for kernel in kernels)
