"""What data-parallel messages add to a chunk's passes, by how the framework exchanges weights.

- Every pass: ZeRO 2 and 3 without a pipeline gather each layer's weights before its forward (3:
  before its backward too) and scatter its gradients after its backward, each beside the compute of
  a neighbouring layer. The first gather and the last scatter have nothing to run beside.
  In one ring, nothing runs beside: ``TENSORS`` weights a layer go around all ranks one by one.
- Once a step: gradients are summed (ZeRO 0) or scattered, and updated weights gathered. Where the
  framework overlaps, in buckets beside the last microbatch's backward and the first one's forward;
  else after the last backward. Pipelines with ZeRO 2 and 3 also keep weights gathered and gradients
  whole through the step, as torch's stages do.
- Replicas (hybrid sharding): weights are gathered and gradients scattered among the ranks of one
  replica; after each scatter the shard is summed over the replicas, in the same place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autoplan.validation.ranks.held_states import shards_of, stage_of
from autoplan.validation.ranks.learned_weights import learned_weights
from autoplan.validation.ranks.stages import Chunk
from autoplan.validation.step.clock import Clock
from cost_models.overlap import bucketed_s, prefetched_s

BUCKETS = 8
TENSORS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """Seconds that messages add to each microbatch's passes, and once a step."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    once_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Beside:
    """Seconds of one layer, and of the whole chunk, that messages may run beside."""

    layer_forward_s: float
    layer_backward_s: float
    forward_s: float
    backward_s: float


def exchange(clock: Clock, chunk: Chunk, weights: float, beside: Beside) -> Exchange:
    """Seconds that the exchange of a chunk's weights and gradients adds."""
    setup = clock.setup
    if setup.dp * setup.cp == 1:
        return Exchange()
    if setup.tuning != "all":
        return _adapters(clock, chunk, weights, beside)
    if not stage_of(setup).shards_states:
        summed_s = clock.data_parallel_s("all_reduce", weights * setup.framework.reduced_bytes)
        overlaps = setup.framework.overlaps_reductions
        return Exchange(once_s=_shown(clock, summed_s, beside.backward_s, overlaps))
    if setup.zero == 1 or setup.pp > 1:
        return _once(clock, weights, beside)
    if setup.framework.gathers_in_one_ring:
        return _one_ring(clock, chunk, weights)
    return _every_pass(clock, chunk, weights, beside)


def _adapters(clock: Clock, chunk: Chunk, weights: float, beside: Beside) -> Exchange:
    """Gradients of what learns are summed once; ZeRO 3 gathers frozen weights all the same."""
    setup = clock.setup
    learned = learned_weights(setup) * chunk.layers / setup.model.layers
    summed_s = clock.data_parallel_s("all_reduce", learned * setup.framework.reduced_bytes)
    once_s = _shown(clock, summed_s, beside.backward_s, setup.framework.overlaps_reductions)
    if setup.zero < 3 or setup.pp > 1 or not stage_of(setup).shards_states:
        return Exchange(once_s=once_s)
    return replace(_every_pass(clock, chunk, weights, beside), once_s=once_s)


def _every_pass(clock: Clock, chunk: Chunk, weights: float, beside: Beside) -> Exchange:
    """One unit of the ends, gathered once, and one of each layer; all but one have a neighbour."""
    efficiency, layers = clock.cluster.overlap_efficiency, chunk.layers
    unit = weights / (layers + 1)
    gather_s = _gather_s(clock, unit)
    scatter_s = _scatter_s(clock, unit) if clock.setup.tuning == "all" else 0.0
    again_s = gather_s if clock.setup.zero == 3 else 0.0
    return Exchange(
        forward_s=prefetched_s(gather_s, gather_s, beside.layer_forward_s, layers, efficiency),
        backward_s=prefetched_s(
            scatter_s, again_s + scatter_s, beside.layer_backward_s, layers, efficiency
        ),
    )


def _one_ring(clock: Clock, chunk: Chunk, weights: float) -> Exchange:
    framework, ranks = clock.setup.framework, shards_of(clock.setup)
    rate = framework.ring_adapters * clock.cluster.inter_node.bytes_per_s

    def around_s(element_bytes: int) -> float:
        steps_s = (ranks - 1) * TENSORS * chunk.layers * framework.ring_step_s
        return steps_s + (ranks - 1) / ranks * weights * element_bytes / rate

    gathered_s, scattered_s = around_s(framework.gathered_bytes), around_s(framework.reduced_bytes)
    again_s = gathered_s if clock.setup.zero == 3 else 0.0
    summed_s = _sum_s(clock, weights)
    return Exchange(forward_s=gathered_s, backward_s=again_s + scattered_s + summed_s)


def _once(clock: Clock, weights: float, beside: Beside) -> Exchange:
    framework = clock.setup.framework
    gathered_s, scattered_s = _gather_s(clock, weights), _scatter_s(clock, weights)
    return Exchange(
        once_s=_shown(clock, scattered_s, beside.backward_s, framework.overlaps_reductions)
        + _shown(clock, gathered_s, beside.forward_s, framework.overlaps_gathers)
    )


def _gather_s(clock: Clock, weights: float) -> float:
    return clock.sharded_s("all_gather", weights * clock.setup.framework.gathered_bytes)


def _scatter_s(clock: Clock, weights: float) -> float:
    scattered_s = clock.sharded_s("reduce_scatter", weights * clock.setup.framework.reduced_bytes)
    return scattered_s + _sum_s(clock, weights)


def _sum_s(clock: Clock, weights: float) -> float:
    """Each rank's shard of the gradients over all replicas."""
    shard = weights / shards_of(clock.setup)
    return clock.replicated_s("all_reduce", shard * clock.setup.framework.reduced_bytes)


def _shown(clock: Clock, message_s: float, beside_s: float, overlaps: bool) -> float:
    if not overlaps:
        return message_s
    return bucketed_s(message_s, beside_s, BUCKETS, clock.cluster.overlap_efficiency)
