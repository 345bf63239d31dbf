"""Gathered weights that are in use at once, and the buffers of their messages.

FSDP has units, a layer or the root (the ends). The root's weights stay gathered from its forward to
its backward. Of the layers, the one in use and the next one, gathered ahead, are there. Every
gather of FSDP2 fills one buffer, in a stream of its own, and is copied out of it into the weights.

DeepSpeed gathers module by module, here the largest product of a layer and the next one, and
reduces through two buckets of ``reduce_bucket_size`` gradients.

litgpt's FSDP of adapters gathers the whole model at once: its measured memory on several devices is
the shard and the whole beside it, for every model.
"""

from __future__ import annotations

from autoplan.validation.memory.transients import largest_product
from autoplan.validation.ranks.held_states import stage_of
from autoplan.validation.ranks.stages import ONE_LAYER, Chunk, weights_of
from autoplan.validation.setups.setup import Setup

REDUCE_BUCKET = 500_000_000


def gathered_in_flight(setup: Setup, held: tuple[Chunk, ...]) -> float:
    """Bytes of gathered weights, where they do not stay for the step."""
    if stage_of(setup).keeps_weights:
        return 0.0
    if setup.tuning != "all":
        weights = sum(weights_of(setup, chunk) for chunk in held)
    elif setup.framework.master_bytes:
        weights = 2 * largest_product(setup)
    else:
        root, layer = _units(setup, held)
        weights = root + 2 * layer
    return setup.framework.gathered_bytes * weights


def message_buffers(setup: Setup, held: tuple[Chunk, ...]) -> float:
    """Bytes that messages over data-parallel ranks fill."""
    if setup.tuning != "all" or not stage_of(setup).shards_states:
        return 0.0
    if not setup.framework.master_bytes:
        return setup.framework.gathered_bytes * sum(_units(setup, held))
    if stage_of(setup).keeps_weights:
        return 0.0
    return setup.framework.reduced_bytes * 2 * REDUCE_BUCKET


def _units(setup: Setup, held: tuple[Chunk, ...]) -> tuple[float, float]:
    layer = weights_of(setup, ONE_LAYER)
    total = sum(weights_of(setup, chunk) for chunk in held)
    return total - layer * sum(chunk.layers for chunk in held), layer
