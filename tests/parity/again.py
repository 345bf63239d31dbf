"""Random choices of what runs again in the backward of blocks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from autoplan.codegen.again import Again
from autoplan.plan import RegionPlan
from autoplan.sharding.assignment import relative_name
from autoplan.trace.graph import OpGraph
from autoplan.trace.needed import needed_of_block


def random_again(graph: OpGraph, seed: int) -> dict[str, Again]:
    """For each block a subset of its own of what can run again, by path."""
    draw = random.Random(seed)
    return {block.path: _drawn(graph, index, draw) for index, block in enumerate(graph.blocks)}


def _drawn(graph: OpGraph, index: int, draw: random.Random) -> Again:
    block, share = graph.blocks[index], draw.choice([0.2, 0.5, 0.8, 1.0])
    return Again(
        calls=frozenset(n for n in sorted(needed_of_block(graph, block)) if draw.random() < share),
        inputs=frozenset(number for number in range(len(block.inputs)) if draw.random() < share),
    )


def regions_again(
    graph: OpGraph, regions: Sequence[RegionPlan], draw: random.Random
) -> tuple[RegionPlan, ...]:
    """Each block a region of its own, with operators and inputs drawn to be made again."""
    return tuple(again for region in regions for again in _by_block(graph, region, draw))


def _by_block(graph: OpGraph, region: RegionPlan, draw: random.Random) -> Iterator[RegionPlan]:
    if not region.kind:
        yield region
        return
    block = graph.kinds[region.kind][0]
    names = [relative_name(region.kind, n) for n in sorted(needed_of_block(graph, block))]
    for path in region.blocks:
        yield replace(
            region,
            blocks=(path,),
            recomputed_operators=tuple(n for n in names if draw.random() < 0.6),
            reconverted_inputs=tuple(
                number for number in range(len(region.inputs)) if draw.random() < 0.5
            ),
        )
