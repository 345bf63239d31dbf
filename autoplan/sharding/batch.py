"""Where the batch goes: placements on the axes that split it, the same for ``dp`` and ``mb``.

Microbatches run one after another, so no message can pass between their pieces: a tensor that
carries the batch stays sharded on it from the inputs to the loss, everything else is replicated,
and sums over the batch are partial until the gradients and the loss are reduced at the end of the
step. Two things do not fit. A sum that a reader needs complete can be *hoisted* when it depends on
inputs and buffers alone (the number of valid targets): it is computed for all microbatches ahead
of the first forward. Any other operator that needs samples to meet *mixes* the batch. Values are
counted once: what depends on a hoisted sum cannot be hoisted itself, and a sum that an earlier
reader takes as a term cannot be whole for a later one.

Strategies are those at a prime batch, one sample per piece, so that no other size can be mistaken
for the batch and every split is even.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoplan.sharding.excerpt import excerpt
from autoplan.sharding.mesh import MeshAxis
from autoplan.sharding.placement import Partial, Placement, Replicate, Shard
from autoplan.sharding.rules import GraphRules, known
from autoplan.sharding.rules.batch_norm import syncs_statistics
from autoplan.sharding.strategies import Port, Strategy
from autoplan.trace.graph import OpGraph, OpNode, Ref, TensorMeta

_PRIME = 1_000_003


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchLayout:
    """How the graph runs on a part of the batch.

    Attributes:
        placements: of every tensor, as its readers find it (hoisted ones whole).
        strategies: of every call.
        hoisted: partial values, made from inputs, buffers and constants alone, that a reader needs
            complete.
        mixing: calls that need samples of different pieces, with the reason. Where there is one,
            the batch cannot be split at all.
        synced: calls that exchange statistics over the ranks that split the batch. Where there is
            one, a rank's part of the batch is one microbatch.
        loss: placement of the loss: ``Partial()`` when it is the sum over the pieces of the batch.
            ``Replicate()`` when every piece computes the whole loss, so that the sum over pieces
            counts it once for each.
    """

    placements: Mapping[Ref, Placement]
    strategies: Mapping[str, Strategy]
    hoisted: tuple[Ref, ...]
    mixing: tuple[str, ...]
    synced: tuple[str, ...]
    loss: Placement


def batch_layout(graph: OpGraph) -> BatchLayout:
    """The layout of a graph on the batch axes; the same at every batch."""
    walk = _Walk(graph)
    for node in walk.graph.nodes:
        if node.kind == "call":
            walk.call(node)
        else:
            walk.source(node)
    return BatchLayout(
        placements=walk.placements,
        strategies=walk.strategies,
        hoisted=tuple(walk.hoisted),
        mixing=tuple(walk.mixing),
        synced=tuple(node.name for node in graph.of_kind("call") if syncs_statistics(node)),
        loss=walk.placements[graph.output],
    )


class _Walk:
    """Forward propagation in topological order."""

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.few = excerpt(graph, {self._first(node) for node in graph.nodes}).at_batch(_PRIME)
        self.rules = GraphRules(self.few)
        self.axis = MeshAxis("dp", _PRIME)
        self.placements: dict[Ref, Placement] = {}
        self.strategies: dict[str, Strategy] = {}
        self.hoisted: dict[Ref, None] = {}
        self.mixing: list[str] = []
        self.trained: set[str] = set()
        self.counted: set[str] = set()
        self.terms: set[Ref] = set()
        self.offers: dict[str, tuple[list[Placement], list[Strategy]]] = {}

    def source(self, node: OpNode) -> None:
        """An input, parameter, buffer or constant."""
        if node.kind == "parameter":
            self.trained.add(node.name)
        for index, meta in enumerate(node.outputs):
            self.placements[Ref(node.name, index)] = _own(meta)

    def call(self, node: OpNode) -> None:
        """Takes the first strategy that keeps the batch and whose operands are there."""
        if any(ref.node in self.trained for ref in node.operands):
            self.trained.add(node.name)
        offered = self._offered(node)
        for may_hoist in (False, True):
            for strategy in offered:
                if self._fits(node, strategy, may_hoist):
                    self._take(node, strategy)
                    return
        self._mix(node)

    def _offered(self, node: OpNode) -> list[Strategy]:
        """Strategies that keep the batch, worked out once for corresponding calls of blocks."""
        arriving = [self.placements[ref] for ref in node.operands]
        first = self._first(node)
        known_for, offered = self.offers.get(first, (None, []))
        if known_for != arriving:
            offered = [
                strategy
                for strategy in self.rules.strategies(self.few.by_name[first], self.axis, arriving)
                if _keeps_batch(strategy, node.outputs)
            ]
            self.offers[first] = arriving, offered
        return offered

    def _first(self, node: OpNode) -> str:
        """The node's counterpart in the first block of the kind, or itself outside of blocks."""
        return self.graph.representative.get(node.name, node.name)

    def _fits(self, node: OpNode, strategy: Strategy, may_hoist: bool) -> bool:
        return all(
            self.placements[ref] == port.placement or (may_hoist and self._is_hoistable(ref, port))
            for ref, port in zip(node.operands, strategy.inputs, strict=True)
        )

    def _is_hoistable(self, ref: Ref, port: Port) -> bool:
        return (
            port.placement == Replicate()
            and self.placements[ref] == Partial()
            and ref.node not in self.trained | self.counted
            and ref not in self.terms
        )

    def _take(self, node: OpNode, strategy: Strategy) -> None:
        self.strategies[node.name] = strategy
        for ref, port in zip(node.operands, strategy.inputs, strict=True):
            if self.placements[ref] != port.placement:
                self.hoisted[ref] = None
                self.placements[ref] = Replicate()
            if port.placement == Partial():
                self.terms.add(ref)
        if any(ref in self.hoisted or ref.node in self.counted for ref in node.operands):
            self.counted.add(node.name)
        for index, placement in enumerate(strategy.outputs):
            self.placements[Ref(node.name, index)] = placement

    def _mix(self, node: OpNode) -> None:
        """The layout goes on behind the call as if its results were ordinary."""
        self.mixing.append(
            f"{node.name}: {self._reason(node)}{f' ({node.where})' * bool(node.where)}"
        )
        self.strategies[node.name] = self.rules.strategies(
            self.few.by_name[self._first(node)], self.axis
        )[0]
        for index, meta in enumerate(node.outputs):
            self.placements[Ref(node.name, index)] = _own(meta)

    def _reason(self, node: OpNode) -> str:
        if not known(node.target):
            return f"{node.target} has no rule, so it may mix samples"
        partial = [ref for ref in node.operands if self.placements[ref] == Partial()]
        if partial:
            return f"{node.target} needs the sum of {partial[0].node} over the whole batch"
        return f"{node.target} mixes samples of the batch"


def _own(meta: TensorMeta) -> Placement:
    return Shard(meta.batch_dims[0]) if meta.batch_dims else Replicate()


def _keeps_batch(strategy: Strategy, outputs: tuple[TensorMeta, ...]) -> bool:
    return all(
        isinstance(placement, Shard) if meta.batch_dims else not isinstance(placement, Shard)
        for placement, meta in zip(strategy.outputs, outputs, strict=True)
    )
