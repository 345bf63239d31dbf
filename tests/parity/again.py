"""Random choices of what runs again in the backward of blocks."""

from __future__ import annotations

import random

from autoplan.codegen.again import Again
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
