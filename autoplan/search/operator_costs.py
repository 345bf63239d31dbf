"""Seconds and passing bytes of operators and conversions for one microbatch on one rank.

An operator takes the time of its kernels on the rank's shards (``kernels``). An operator whose
outputs all share an operand's storage costs nothing. Conversions on ``tp`` stand in the way of the
compute that needs them, so they count in full.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

from autoplan.search.folded_graph import FoldedGraph, FoldedSizes
from autoplan.search.kernels import kernels_of
from autoplan.search.space import Link, Space
from autoplan.sharding.placement import Placement, local_fraction
from autoplan.sharding.redistribute import Message, conversion, is_possible, messages
from autoplan.sharding.strategies import Port, Strategy
from autoplan.trace.graph import OpNode, TensorMeta
from cost_models.collectives import CollectiveKind, collective_s
from cost_models.compute import kernel_s
from cost_models.work import Work
from hardware_profiles.spec import ClusterSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class OpCost:
    """One operator under one strategy: seconds of one microbatch, bytes beside what is kept."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    transient_bytes: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversionCost:
    """One conversion: seconds and messages (kind, bytes) of one microbatch; None is impossible."""

    forward_s: float
    backward_s: float
    forward: tuple[Message, ...] = ()
    backward: tuple[Message, ...] = ()


NO_COST = OpCost()
IMPOSSIBLE = ConversionCost(forward_s=math.inf, backward_s=0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class MicrobatchCosts:
    """Costs of every choice of a space for one microbatch.

    Attributes:
        operators: by decision, then by choice.
        conversions: by link, then by producer placement, then by port.
    """

    space: Space
    sizes: FoldedSizes
    operators: tuple[tuple[OpCost, ...], ...]
    conversions: tuple[tuple[tuple[ConversionCost, ...], ...], ...]


def microbatch_costs(
    space: Space, microbatch: int, cluster: ClusterSpec, gpus_per_node: int
) -> MicrobatchCosts:
    """Prices all choices for a microbatch of so many samples per rank."""
    sizes = space.folded.at_batch(microbatch)
    pricer = _Pricer(space, sizes, cluster, tp_ranks_per_node(space.tp, gpus_per_node))
    return MicrobatchCosts(
        space=space,
        sizes=sizes,
        operators=tuple(
            pricer.operators(name, options)
            for name, options in zip(space.names, space.strategies, strict=True)
        ),
        conversions=tuple(pricer.link(link) for link in space.links),
    )


def tp_ranks_per_node(tp: int, gpus_per_node: int) -> int:
    """Ranks of a ``tp`` group (neighbours) that share a node, in the worst placed group."""
    return math.gcd(tp, gpus_per_node)


def dp_ranks_per_node(dp: int, tp: int, gpus_per_node: int) -> int:
    """Ranks of a ``dp`` group (``tp`` apart) that share a node, in the worst placed group."""
    return min(dp, gpus_per_node // tp) if gpus_per_node % tp == 0 else 1


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
            stored = source.node in sizes.nodes and sizes.nodes[source.node].kind == "parameter"
            yield sizes.meta(source), port.placement, stored


@dataclass(frozen=True, slots=True)
class _Pricer:
    space: Space
    sizes: FoldedSizes
    cluster: ClusterSpec
    ranks_per_node: int
    known: dict[tuple[int, bool, int], ConversionCost] = field(default_factory=dict)
    known_s: dict[Message, float] = field(default_factory=dict)

    def operators(self, name: str, options: tuple[Strategy, ...]) -> tuple[OpCost, ...]:
        node = self.sizes.nodes.get(name)
        if node is None or node.kind != "call" or (node.alias_of and all(node.alias_of)):
            return (NO_COST,) * len(options)
        return tuple(self._operator(node, strategy) for strategy in options)

    def _operator(self, node: OpNode, strategy: Strategy) -> OpCost:
        tp = self.space.tp
        split = tp if strategy.splits_work else 1
        read = list(distinct_operands(node, strategy, self.space.folded, self.sizes))
        inputs = sum(meta.nbytes * local_fraction(at, tp) for meta, at, _ in read)
        weights = sum(meta.nbytes * local_fraction(at, tp) for meta, at, stored in read if stored)
        outputs = sum(
            meta.nbytes * local_fraction(at, tp)
            for meta, at in zip(node.outputs, strategy.outputs, strict=True)
        )
        moved = inputs + outputs
        differentiable = any(meta.requires_grad for meta in node.outputs)
        saved = sum(kept.nbytes for kept in node.saved) / split
        activations = 2 * (moved - weights) if differentiable else moved - weights
        whole = [self.sizes.meta(self.space.folded.operand(node, ref)) for ref in node.operands]
        found = kernels_of(node, whole, moved, strategy, tp)
        return OpCost(
            forward_s=self._seconds(found.forward),
            backward_s=self._seconds(found.backward) if differentiable else 0.0,
            transient_bytes=max(activations - saved, moved - weights) + weights,
        )

    def _seconds(self, kernels: tuple[Work, ...]) -> float:
        return sum(kernel_s(kernel, self.cluster.device) for kernel in kernels)

    def link(self, link: Link) -> tuple[tuple[ConversionCost, ...], ...]:
        meta = self.sizes.meta(link.tensor.ref)
        nbytes, learns = meta.nbytes, meta.requires_grad
        table = []
        for placement, pairs in zip(link.placements, link.pairs, strict=True):
            row = []
            for port, pair in zip(link.ports, pairs, strict=True):
                key = nbytes, learns, pair
                if key not in self.known:
                    self.known[key] = self._priced(nbytes, learns, placement, port)
                row.append(self.known[key])
            table.append(tuple(row))
        return tuple(table)

    def _priced(
        self, nbytes: int, learns: bool, placement: Placement, port: Port
    ) -> ConversionCost:
        if not is_possible(placement, port):
            return IMPOSSIBLE
        found = conversion(placement, port, differentiable=learns)
        if found is None:
            return ConversionCost(forward_s=0.0, backward_s=0.0)
        forward, backward = messages(found, nbytes, self.space.tp)
        return ConversionCost(
            forward_s=self._sent_s(forward),
            backward_s=self._sent_s(backward),
            forward=forward,
            backward=backward,
        )

    def _sent_s(self, sent: tuple[Message, ...]) -> float:
        return sum(self._message_s(message) for message in sent)

    def _message_s(self, message: Message) -> float:
        if message not in self.known_s:
            kind, nbytes = message
            self.known_s[message] = collective_s(
                cast(CollectiveKind, kind), nbytes, self.space.tp, self.ranks_per_node, self.cluster
            )
        return self.known_s[message]
