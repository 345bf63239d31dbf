"""Assignments to test with: recipes by preference, and random ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from autoplan.codegen.again import Again
from autoplan.codegen.choices import Choices
from autoplan.codegen.emitted import Emitted
from autoplan.codegen.pipeline import emit_choices
from autoplan.errors import PlanError
from autoplan.plan import StagePlan
from autoplan.sharding.assignment import Assignment
from autoplan.sharding.batch import batch_layout
from autoplan.sharding.mesh import MeshAxis
from autoplan.sharding.placement import Partial, Placement, Replicate, Shard, divides
from autoplan.sharding.redistribute import is_possible
from autoplan.sharding.rules import GraphRules
from autoplan.sharding.strategies import Strategy
from autoplan.trace.graph import OpGraph, OpNode, Ref

WHOLE = Replicate()
LOOKUPS = ("aten.embedding.default", "autoplan.bags.default")
Pick = Callable[[OpNode, Sequence[Strategy], Sequence[Placement]], Strategy]


def choices(
    graph: OpGraph,
    tp: int,
    pick: Pick,
    *,
    storage: Callable[[OpNode, Sequence[Placement]], Placement] = lambda _, offered: offered[0],
    entry: Callable[[Sequence[Placement]], Placement] = lambda offered: offered[0],
    dp: int = 1,
    num_microbatches: int = 1,
    recomputed: frozenset[str] = frozenset(),
    stages: tuple[StagePlan, ...] = (),
    again: Mapping[str, Again] | None = None,
    shares_samples: bool = False,
) -> Choices:
    """Walks the graph; ``pick`` chooses among the strategies that can follow their sources.

    Args:
        shares_samples: whether ranks of ``tp`` may share samples too.
    """
    stored = {
        node.name: storage(node, _storages(graph, node, tp)) for node in graph.of_kind("parameter")
    }
    entries: dict[str, tuple[Placement, ...]] = {}
    strategies: dict[str, Strategy] = {}
    axis = MeshAxis("tp", tp, shares_samples=shares_samples)
    for node in graph.of_kind("call"):
        block = graph.block_of.get(node.name)
        placed: dict[Ref, Placement] = {}
        if block is not None:
            first = graph.kinds[block.kind][0]
            if block.kind not in entries:
                entries[block.kind] = tuple(
                    entry(_entries(graph, ref, axis, _source(ref, strategies, stored)))
                    for ref in block.inputs
                )
            placed = dict(zip(block.inputs, entries[block.kind], strict=True))
            if block is not first:
                model = first.nodes[block.nodes.index(node.name)]
                strategies[node.name] = strategies[model]
                continue
        sources = [placed.get(ref) or _source(ref, strategies, stored) for ref in node.operands]
        offered = [
            strategy
            for strategy in GraphRules(graph).strategies(node, axis)
            if all(map(is_possible, sources, strategy.inputs))
        ]
        strategies[node.name] = pick(node, offered, sources)
    return Choices(
        graph=graph,
        assignment=Assignment(
            strategies=strategies,
            storage=stored,
            entries={block.path: entries[block.kind] for block in graph.blocks},
        ),
        layout=batch_layout(graph),
        dp=dp,
        num_microbatches=num_microbatches,
        tp=tp,
        recomputed=recomputed,
        stages=stages,
        again=again or {},
    )


def replicated(graph: OpGraph, tp: int, **degrees) -> Choices:
    """Every rank computes everything."""
    return choices(graph, tp, lambda _, offered, __: offered[0], **degrees)


def recipe(
    graph: OpGraph,
    tp: int,
    weights: Mapping[str, int],
    entry: Placement = WHOLE,
    **degrees,
) -> Choices:
    """Weights whose names end so are sharded on that dim, and operators follow their operands.

    Args:
        weights: sharded dim by the end of the parameter's name.
        entry: placement of the activations between blocks.
    """

    def storage(node: OpNode, offered: Sequence[Placement]) -> Placement:
        found = next((dim for end, dim in weights.items() if node.name.endswith(end)), None)
        return Replicate() if found is None or Shard(found) not in offered else Shard(found)

    def follow(node: OpNode, offered: Sequence[Strategy], sources: Sequence[Placement]) -> Strategy:
        def moved(strategy: Strategy) -> int:
            return sum(
                graph.meta(ref).numel * (1000 if graph.by_name[ref.node].kind == "parameter" else 1)
                for ref, source, port in zip(node.operands, sources, strategy.inputs, strict=True)
                if source != port.placement
            )

        return min(offered, key=moved)

    return choices(
        graph,
        tp,
        follow,
        storage=storage,
        entry=lambda offered: entry if entry in offered else Replicate(),
        **degrees,
    )


def own_samples(graph: OpGraph, tp: int, **degrees) -> Choices:
    """Tables by columns; all else whole on every rank, which learns from samples of its own."""
    tables = {node.operands[0].node for node in graph.of_kind("call") if node.target in LOOKUPS}

    def by_samples(node: OpNode, offered: Sequence[Strategy], _: Sequence[Placement]) -> Strategy:
        if node.target in LOOKUPS:
            return next(strategy for strategy in offered if strategy.label == "m")
        if not node.outputs[0].requires_grad:
            return offered[0]
        metas = [graph.meta(ref) for ref in node.operands]
        return next(
            (
                strategy
                for strategy in offered
                for port, meta in zip(strategy.inputs, metas, strict=True)
                if isinstance(port.placement, Shard) and port.placement.dim in meta.batch_dims
            ),
            offered[0],
        )

    return choices(
        graph,
        tp,
        by_samples,
        storage=lambda node, offered: Shard(1) if node.name in tables else offered[0],
        entry=lambda offered: Shard(0) if Shard(0) in offered else offered[0],
        shares_samples=True,
        **degrees,
    )


def random_program(graph: OpGraph, tp: int, seed: int, **degrees) -> Emitted:
    """A program of random strategies, storage and block entries."""
    return random_choices(graph, tp, seed, **degrees)[1]


def random_choices(graph: OpGraph, tp: int, seed: int, **degrees) -> tuple[Choices, Emitted]:
    """Random strategies, storage and block entries, and the program of them.

    An entry that the first block of a kind can take may not follow the output of the block before
    another; then the next draw is taken.
    """
    chance = random.Random(seed)
    for _ in range(50):
        drawn = choices(
            graph,
            tp,
            lambda _, offered, __: chance.choice(offered),
            storage=lambda _, offered: chance.choice(offered),
            entry=chance.choice,
            **degrees,
        )
        try:
            return drawn, emit_choices(drawn, "random")
        except PlanError:
            continue
    raise AssertionError("no draw could be lowered")


def _source(ref: Ref, strategies: dict[str, Strategy], stored: dict[str, Placement]) -> Placement:
    if ref.node in strategies:
        return strategies[ref.node].outputs[ref.index]
    return stored.get(ref.node, Replicate())


def _storages(graph: OpGraph, node: OpNode, tp: int) -> list[Placement]:
    shape = node.outputs[0].shape
    shards = [Shard(dim) for dim in range(len(shape)) if divides(Shard(dim), shape, tp)]
    return [Replicate(), *shards]


def _entries(graph: OpGraph, ref: Ref, axis: MeshAxis, source: Placement) -> list[Placement]:
    meta = graph.meta(ref)
    shards = [
        Shard(dim)
        for dim in range(len(meta.shape))
        if (dim not in meta.batch_dims or axis.shares_samples)
        and divides(Shard(dim), meta.shape, axis.size)
    ]
    partial = [Partial()] if not isinstance(source, Shard) and meta.requires_grad else []
    return [Replicate(), *shards, *partial]
