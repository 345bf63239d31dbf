"""What plans of a configuration cost, from the job, the cluster and the menus of its regions."""

from __future__ import annotations

import math

from autoplan.capabilities import sums_in_backward
from autoplan.search.pipeline.configs import Config
from autoplan.search.pipeline.family import Boundary, Family
from autoplan.search.pipeline.rank_memory import RankMemory
from autoplan.search.pipeline.stage_times import StageClock
from autoplan.search.pipeline.weight_messages import WeightMessages
from autoplan.search.pipeline.whole import Hop, WholeCosts
from autoplan.search.pricing import Pricing
from cost_models.collectives import collective_s
from cost_models.host_work import split_gradient_s
from cost_models.memory import weight_bytes
from cost_models.optimizers import one_tensor_bytes, optimizer
from cost_models.peaks import optimizer_bytes_per_s
from cost_models.zero import ZERO_STAGES, ZeroStage, zero_stage
from hardware_profiles.spec import ClusterSpec

_LARGE_BYTES = 2**30


def whole_costs(pricing: Pricing, family: Family, config: Config, boundary: Boundary) -> WholeCosts:
    """The costs of all plans of a configuration whose items meet in the given placements."""
    job, cluster = pricing.job, pricing.cluster
    stage = _zero_stage(config)
    sharded = config.shards if stage.shards_states else 1
    traffic = optimizer(job.optimizer).traffic_bytes / sharded
    menus = family.menus
    near, far = (_hop(stays_in_node, cluster) for stays_in_node in (True, False))
    return WholeCosts(
        config=config,
        clock=StageClock(
            stage=stage,
            microbatches=config.num_microbatches,
            messages=WeightMessages(config, job.precision, job.gpus_per_node, cluster),
            optimizer_s=traffic / optimizer_bytes_per_s(cluster.device)
            + _tensors_s_per_element(pricing, config, in_pieces=config.tp > 1 or sharded > 1),
            overlap_efficiency=_overlap_efficiency(pricing, config),
            most_elements=sum(pricing.trained_elements),
        ),
        memory=rank_memory(pricing, config),
        is_block=tuple(bool(item.kind) for item in menus.stack.items),
        cuts=family.crossings(boundary),
        hops=tuple(
            near if config.hop_stays_in_node(rank, job.gpus_per_node) else far
            for rank in range(config.pp)
        ),
        shared_s=menus.shared_s,
        split_element_s=_split_element_s(pricing, config),
        tied=family.tied(boundary),
        apart=family.apart(boundary),
    )


def rank_memory(pricing: Pricing, config: Config) -> RankMemory:
    """Memory of the ranks of a configuration."""
    job, stage = pricing.job, _zero_stage(config)
    trained, frozen = (
        weight_bytes(
            precision=job.precision,
            optimizer=job.optimizer,
            dp=config.shards,
            stage=stage,
            trainable=trainable,
        )
        for trainable in (True, False)
    )
    return RankMemory(
        trained=trained,
        frozen=frozen,
        fills_buckets=(
            config.state_ranks > 1 and not stage.shards_states and config.shape.splits_backward
        ),
        reduces_each=not stage.holds_full_gradients,
        keeps_sums=(
            config.replicas > 1 and not stage.holds_full_gradients and config.num_microbatches > 1
        ),
        buffer_bytes=pricing.buffer_bytes,
        input_bytes=pricing.input_bytes(config.dp),
        workspace_bytes=pricing.cluster.device.workspace_bytes,
        limit_bytes=pricing.limit_bytes,
        most_step_bytes=_most_step_bytes(pricing, config.shards if stage.shards_states else 1),
    )


def _tensors_s_per_element(pricing: Pricing, config: Config, *, in_pieces: bool) -> float:
    """Seconds of an optimizer's step beside its bytes, for one of a rank's elements in the mean."""
    device = pricing.cluster.device
    each_s = device.optimizer_piece_s if in_pieces else device.optimizer_tensor_s
    return _per_element(each_s or 0.0, pricing, config)


def _split_element_s(pricing: Pricing, config: Config) -> float:
    """What the host takes for gradients of weights apart, for one element in the mean."""
    if not config.shape.splits_backward:
        return 0.0
    return _per_element(split_gradient_s(pricing.cluster.device), pricing, config)


def _per_element(tensor_s: float, pricing: Pricing, config: Config) -> float:
    """Seconds of each parameter, as seconds of one of a rank's elements."""
    elements = pricing.trained_elements
    return tensor_s * len(elements) * config.tp / max(1, sum(elements))


def _overlap_efficiency(pricing: Pricing, config: Config) -> float:
    """Of messages over ``dp``.

    FSDP2 runs them beside compute on streams, which CPUs do not have: there each blocks. Sums of
    whole gradients have threads of their own there.
    """
    cluster, shards_states = pricing.cluster, _zero_stage(config).shards_states
    if shards_states:
        return 0.0 if cluster.runs_on_host else cluster.overlap_efficiency
    is_beside = sums_in_backward(
        pipeline=config.pp > 1, shards_states=shards_states, sends_on_dp=pricing.syncs_statistics
    )
    return cluster.overlap_efficiency if is_beside else 0.0


def _most_step_bytes(pricing: Pricing, shards: int) -> float:
    """Of the largest tensor on a CPU, where torch steps one tensor after the other."""
    if not pricing.cluster.runs_on_host:
        return math.inf
    each = one_tensor_bytes(pricing.job.optimizer)
    return each * max(pricing.trained_elements, default=0) / shards


def _zero_stage(config: Config) -> ZeroStage:
    """How ZeRO runs; where no rank has the same weights there is nothing to split."""
    if config.state_ranks == 1:
        return ZERO_STAGES[0]
    if config.pp == 1:
        return ZERO_STAGES[config.zero]
    return zero_stage(config.zero, pipeline=True, accumulates=config.num_microbatches > 1)


def _hop(stays_in_node: bool, cluster: ClusterSpec) -> Hop:
    near = min(2, cluster.gpus_per_node) if stays_in_node else 1
    fixed_s, large_s = (
        collective_s("send_recv", nbytes, 2, near, cluster) for nbytes in (0, _LARGE_BYTES)
    )
    return Hop(fixed_s=fixed_s, per_byte_s=(large_s - fixed_s) / _LARGE_BYTES)
