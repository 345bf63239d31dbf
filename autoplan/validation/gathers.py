"""Gathered weights that FSDP has in use at once, by unit: a layer, or the root (the ends).

The root's weights stay gathered from its forward to its backward. Of the layers, the one in use and
the next one, gathered ahead, are there. Every gather fills one buffer, in a stream of its own, and
is copied out of it into the weights.
"""

from __future__ import annotations

from autoplan.validation.held_states import stage_of
from autoplan.validation.setup import Setup
from autoplan.validation.stages import Chunk, weights_of

ONE_LAYER = Chunk(layers=1, embedding=False, head=False)


def gathered_in_flight(setup: Setup, held: tuple[Chunk, ...]) -> float:
    """Bytes of gathered weights, where they do not stay for the step."""
    if stage_of(setup).keeps_weights:
        return 0.0
    root, layer = _units(setup, held)
    return setup.framework.gathered_bytes * (root + 2 * layer)


def gather_buffers(setup: Setup, held: tuple[Chunk, ...]) -> float:
    """Bytes that gathers fill; a framework with master weights gathers into the weights."""
    if setup.framework.master_bytes or not stage_of(setup).shards_states:
        return 0.0
    return setup.framework.gathered_bytes * sum(_units(setup, held))


def _units(setup: Setup, held: tuple[Chunk, ...]) -> tuple[float, float]:
    layer = weights_of(setup, ONE_LAYER)
    total = sum(weights_of(setup, chunk) for chunk in held)
    return total - layer * sum(chunk.layers for chunk in held), layer
