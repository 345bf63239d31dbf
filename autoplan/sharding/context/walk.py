"""How every operator runs on a share of the tokens: one strategy each, from the inputs to the loss.

A call takes the strategy that leaves the tokens of an operand where they are and moves the fewest
bytes besides; a strategy that moves tokens to another dim is none. What follows from inputs,
buffers and constants alone, and learns nothing, every rank makes whole, and cuts its part out where
that is read (rotary tables, masks, labels). What learns but has no tokens (position embeddings,
biases of attention) is made whole too, unless all its readers want the same part of it: then it is
made for that part alone (``_for_readers``). A weight that is added to tokens is cut there.

An operator that needs all tokens and works on them is refused: every rank would do the whole of it.
Outside blocks a call without work (the choice of one token) may gather them, as long as little of
the model's work is then done by every rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoplan.errors import PlanError
from autoplan.sharding.context.starts import token_starts
from autoplan.sharding.excerpt import excerpt
from autoplan.sharding.mesh import MeshAxis
from autoplan.sharding.placement import Partial, Placement, Replicate, Shard
from autoplan.sharding.rules import GraphRules, known
from autoplan.sharding.rules.attention import CAUSAL_OF_ROWS
from autoplan.sharding.strategies import Strategy
from autoplan.trace.graph import OpGraph, OpNode, Ref

SAMPLES = 1_000_003
"""The batch at which tokens are followed: a prime, so that no other size is taken for it."""
MOST_REPEATED = 0.1
"""Of a model's work, what every rank may do."""

_WHOLE = 0
"""The strategy that every operator has first: whole on every rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLayout:
    """How a graph runs on a share of the tokens.

    Attributes:
        strategies: of every call.
        placements: of every tensor, as its readers find it; whole for what is at hand.
        cuts: tensors that are made whole, and of which every rank has its part from then on.
    """

    strategies: Mapping[str, Strategy]
    placements: Mapping[Ref, Placement]
    cuts: frozenset[Ref]


def token_layout(graph: OpGraph, cp: int) -> TokenLayout:
    """The layout of a graph over ``cp`` ranks; the same at every batch.

    Raises:
        PlanError: tokens cannot be split.
    """
    walk = _Walk(graph, cp)
    for node in walk.graph.nodes:
        if node.kind == "call":
            walk.call(node)
        else:
            walk.source(node)
    walk.for_readers()
    walk.check_repeated()
    whole = {ref: Replicate() for ref in walk.at_hand}
    return TokenLayout(
        strategies=walk.strategies,
        placements={**walk.placements, **whole},
        cuts=frozenset(walk.starts).difference(walk.at_hand),
    )


class _Walk:
    """Forward propagation in topological order.

    Attributes:
        placements: of every tensor; of what is at hand, where its tokens are.
        at_hand: tensors that every rank has whole, and reads its part of for nothing.
    """

    def __init__(self, graph: OpGraph, cp: int) -> None:
        self.graph = graph
        self.few = excerpt(graph, {self._first(node) for node in graph.nodes}).at_batch(SAMPLES)
        self.rules = GraphRules(self.few)
        self.axis = MeshAxis("cp", cp)
        self.starts = token_starts(graph, cp)
        self.placements: dict[Ref, Placement] = {}
        self.strategies: dict[str, Strategy] = {}
        self.at_hand: set[Ref] = set()
        self._stored: set[Ref] = set()
        self._gathering: list[OpNode] = []
        self._offers: dict[str, tuple[Sequence[Placement], tuple[Strategy, ...]]] = {}

    def source(self, node: OpNode) -> None:
        """An input, parameter, buffer or constant: whole on every rank."""
        for index in range(len(node.outputs)):
            ref = Ref(node.name, index)
            self._leave(ref, Replicate())
            if node.kind == "parameter":
                self._stored.add(ref)
            else:
                self.at_hand.add(ref)

    def call(self, node: OpNode) -> None:
        """Takes the strategy that keeps the tokens and moves least."""
        learns = any(meta.requires_grad for meta in node.outputs)
        is_given = not learns and all(ref in self.at_hand for ref in node.operands)
        offered = self._offered(node)
        fitting = [each for each in offered[1:] if self._keeps_tokens(node, each)]
        chosen = min(fitting, key=lambda each: self._moved_bytes(node, each), default=None)
        if chosen is None and not is_given:
            self._check_whole(node)
        strategy = chosen or offered[_WHOLE]
        self.strategies[node.name] = offered[_WHOLE] if is_given else strategy
        for index, placement in enumerate(strategy.outputs):
            ref = Ref(node.name, index)
            if is_given and ref not in self.starts:
                self.at_hand.add(ref)
            self._leave(ref, placement)

    def _leave(self, ref: Ref, placement: Placement) -> None:
        begins = self.starts.get(ref)
        self.placements[ref] = placement if begins is None else Shard(begins)

    def _offered(self, node: OpNode) -> tuple[Strategy, ...]:
        """All strategies, worked out once for corresponding calls of blocks."""
        arriving = [self.placements[ref] for ref in node.operands]
        first = self._first(node)
        known_for, offered = self._offers.get(first, (None, ()))
        if known_for != arriving:
            offered = self.rules.strategies(self.few.by_name[first], self.axis, arriving)
            self._offers[first] = arriving, offered
        return offered

    def _first(self, node: OpNode) -> str:
        """The node's counterpart in the first block of the kind, or itself outside of blocks."""
        return self.graph.representative.get(node.name, node.name)

    def _keeps_tokens(self, node: OpNode, strategy: Strategy) -> bool:
        """Whether some operand is read as it arrives, split, and all can be."""
        if strategy.local_op is not None and local_target(strategy) is None:
            return False
        pairs = [
            (ref, self.placements[ref], port.placement)
            for ref, port in zip(node.operands, strategy.inputs, strict=True)
        ]
        return any(here == wanted != Replicate() for _, here, wanted in pairs) and all(
            self._can_read(node, ref, here, wanted) for ref, here, wanted in pairs
        )

    def _can_read(self, node: OpNode, ref: Ref, here: Placement, wanted: Placement) -> bool:
        if ref in self._stored:
            return wanted == Replicate() or (isinstance(wanted, Shard) and not node.flops)
        if ref in self.at_hand:
            return True
        moves = isinstance(here, Shard) and isinstance(wanted, Shard) and here != wanted
        return not moves and (here == wanted or not isinstance(wanted, Partial) or _is_whole(here))

    def _moved_bytes(self, node: OpNode, strategy: Strategy) -> int:
        """Bytes of the whole tensors that a strategy needs put together or summed."""
        moved = {
            ref
            for ref, port in zip(node.operands, strategy.inputs, strict=True)
            if ref not in self.at_hand and not _is_whole(self.placements[ref])
            if self.placements[ref] != port.placement
        }
        return sum(self.graph.meta(ref).nbytes for ref in moved)

    def _check_whole(self, node: OpNode) -> None:
        """Refuses work that every rank would do for all tokens."""
        if not any(isinstance(self.placements[ref], Shard) for ref in node.operands):
            return
        if node.flops or node.name in self.graph.block_of or not known(node.target):
            why = "needs all tokens" if known(node.target) else "has no rule, so it may mix tokens"
            where = f", {node.where}" if node.where else ""
            raise PlanError(
                f"cp={self.axis.size} cannot split {node.name}: {node.target} {why}{where}; "
                "use cp=1"
            )
        self._gathering.append(node)

    def check_repeated(self) -> None:
        """Refuses models of whose work every rank would do much.

        Raises:
            PlanError: naming the call behind which tokens are whole.
        """
        calls = [node for node in self.graph.nodes if node.flops]
        repeated = [node for node in calls if not self.strategies[node.name].splits_work]
        share = sum(node.flops for node in repeated) / max(1, sum(node.flops for node in calls))
        if share > MOST_REPEATED:
            cause = (*self._gathering, *repeated)[0]
            where = f", {cause.where}" if cause.where else ""
            raise PlanError(
                f"cp={self.axis.size} would leave {share:.0%} of the work to every rank, as "
                f"{cause.name} needs all tokens{where}; use cp=1"
            )

    def for_readers(self) -> None:
        """Makes what has no tokens for the part of it that all its readers want."""
        wanted: dict[Ref, set[Placement]] = {}
        for node in reversed(self.graph.nodes):
            if node.kind != "call":
                continue
            asked = wanted.get(Ref(node.name), set())
            if len(asked) == 1 and len(node.outputs) == 1:
                self._make_part(node, next(iter(asked)))
            for ref, port in zip(node.operands, self.strategies[node.name].inputs, strict=True):
                wanted.setdefault(ref, set()).add(port.placement)

    def _make_part(self, node: OpNode, part: Placement) -> None:
        ref = Ref(node.name)
        is_free = ref not in self.at_hand and _is_whole(self.placements[ref])
        if not is_free or not isinstance(part, Shard):
            return
        for strategy in self._offered(node)[1:]:
            if strategy.outputs == (part,) and self._reads_whole(node, strategy):
                self.strategies[node.name] = strategy
                self.placements[ref] = part
                return

    def _reads_whole(self, node: OpNode, strategy: Strategy) -> bool:
        """Whether a strategy reads what is whole, or parts of it, and weights whole."""
        return strategy.local_op is None and all(
            self._reads_part(ref, port.placement)
            for ref, port in zip(node.operands, strategy.inputs, strict=True)
        )

    def _reads_part(self, ref: Ref, wanted: Placement) -> bool:
        if ref in self._stored:
            return _is_whole(wanted)
        is_whole = _is_whole(self.placements[ref]) and not isinstance(wanted, Partial)
        return ref in self.at_hand or is_whole


def local_target(strategy: Strategy) -> str | None:
    """The call that stands in for an operator on a share of the tokens, where one must."""
    stand_in = f"autoplan.{strategy.local_op}.default"
    return stand_in if stand_in == CAUSAL_OF_ROWS else None


def _is_whole(placement: Placement) -> bool:
    return placement == Replicate()
