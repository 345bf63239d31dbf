"""Assignments to test with: recipes by preference, and random ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from autoplan.codegen import Emitted
from autoplan.codegen.choices import Choices
from autoplan.codegen.pipeline import emit_choices
from autoplan.errors import PlanError
from autoplan.sharding.assignment import Assignment
from autoplan.sharding.batch import batch_layout
from autoplan.sharding.mesh import MeshAxis
from autoplan.sharding.placement import Partial, Placement, Replicate, Shard, divides
from autoplan.sharding.redistribute import is_possible
from autoplan.sharding.rules import strategies_for
from autoplan.sharding.strategies import Strategy
from autoplan.trace.graph import OpGraph, OpNode, Ref

Pick = Callable[[OpNode, Sequence[Strategy]], Strategy]


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
) -> Choices:
    """Walks the graph; ``pick`` chooses among the strategies that can follow what comes before."""
    stored = {
        node.name: storage(node, _storages(graph, node, tp)) for node in graph.of_kind("parameter")
    }
    entries: dict[str, tuple[Placement, ...]] = {}
    strategies: dict[str, Strategy] = {}
    axis = MeshAxis("tp", tp)
    for node in graph.of_kind("call"):
        block = graph.block_of.get(node.name)
        placed: dict[Ref, Placement] = {}
        if block is not None:
            first = graph.kinds[block.kind][0]
            if block.kind not in entries:
                entries[block.kind] = tuple(
                    entry(_entries(graph, ref, tp, _source(ref, strategies, stored)))
                    for ref in block.inputs
                )
            placed = dict(zip(block.inputs, entries[block.kind], strict=True))
            if block is not first:
                model = first.nodes[block.nodes.index(node.name)]
                strategies[node.name] = strategies[model]
                continue
        offered = [
            strategy
            for strategy in strategies_for(node, graph, axis)
            if all(
                is_possible(placed.get(ref) or _source(ref, strategies, stored), port)
                for ref, port in zip(node.operands, strategy.inputs, strict=True)
            )
        ]
        strategies[node.name] = pick(node, offered)
    return Choices(
        graph=graph,
        assignment=Assignment(strategies=strategies, storage=stored, entries=entries),
        layout=batch_layout(graph),
        dp=dp,
        num_microbatches=num_microbatches,
        tp=tp,
        recomputed=recomputed,
    )


def replicated(graph: OpGraph, tp: int, **degrees) -> Choices:
    """Every rank computes everything."""
    return choices(graph, tp, lambda _, offered: offered[0], **degrees)


def random_program(graph: OpGraph, tp: int, seed: int, **degrees) -> Emitted:
    """A program of random strategies, storage and block entries.

    An entry that the first block of a kind can take may not follow the output of the block before
    another; then the next draw is taken.
    """
    chance = random.Random(seed)
    for _ in range(50):
        drawn = choices(
            graph,
            tp,
            lambda _, offered: chance.choice(offered),
            storage=lambda _, offered: chance.choice(offered),
            entry=chance.choice,
            **degrees,
        )
        try:
            return emit_choices(drawn, "random")
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


def _entries(graph: OpGraph, ref: Ref, tp: int, source: Placement) -> list[Placement]:
    meta = graph.meta(ref)
    shards = [
        Shard(dim)
        for dim in range(len(meta.shape))
        if dim not in meta.batch_dims and divides(Shard(dim), meta.shape, tp)
    ]
    partial = [Partial()] if not isinstance(source, Shard) and meta.requires_grad else []
    return [Replicate(), *shards, *partial]
