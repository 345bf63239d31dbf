"""Device memory of one training step, by category.

``model_states`` gives what weights, gradients and optimizer take under a ZeRO stage with any
framework's bytes, ``weight_bytes`` the same of one element as the runtime trains: weights are
stored in fp32 in every precision; in bf16 and fp16 the stored weight is the master copy, and
compute reads a copy in the low precision; gradients are reduced and held in fp32. ``worst_moment``
tells which moment of a step takes most.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields

from cost_models.optimizers import optimizer as optimizer_named
from cost_models.zero import ZeroStage

STORED_BYTES = 4
COMPUTE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryBreakdown:
    """Bytes on one device at the worst moment of the step.

    Attributes:
        parameters: stored weights (a shard of them under ZeRO 1-3).
        master_weights: fp32 copies beside weights that are stored in a low precision.
        gradients: what lives between microbatches.
        optimizer_state: moments and the like.
        gathered_parameters: copies of the weights for compute: unsharded, cast, or both.
        activations: storages kept from forward to backward.
        transient: largest short-lived tensors, and the recomputed block.
        communication_buffers: gradient buckets and message staging.
        workspace: device context, NCCL and library workspaces.
    """

    parameters: int
    master_weights: int
    gradients: int
    optimizer_state: int
    gathered_parameters: int
    activations: int
    transient: int
    communication_buffers: int
    workspace: int

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredBytes:
    """Bytes per trainable weight in a framework.

    Attributes:
        weight: of the weight itself.
        master: of the copy that the optimizer updates; 0 where it is the weight itself.
        gradient: of a gradient that lives between microbatches.
        gathered: of the copy for compute where the stored weight is a shard.
        optimizer: of the optimizer's state.
    """

    weight: float
    master: float
    gradient: float
    gathered: float
    optimizer: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelStates:
    """Bytes of a rank that live through the step; names are those of ``MemoryBreakdown``."""

    parameters: float
    master_weights: float
    gradients: float
    optimizer_state: float
    gathered_parameters: float

    @property
    def total(self) -> float:
        return sum(getattr(self, field.name) for field in fields(self))

    def __add__(self, other: ModelStates) -> ModelStates:
        return ModelStates(
            parameters=self.parameters + other.parameters,
            master_weights=self.master_weights + other.master_weights,
            gradients=self.gradients + other.gradients,
            optimizer_state=self.optimizer_state + other.optimizer_state,
            gathered_parameters=self.gathered_parameters + other.gathered_parameters,
        )


def model_states(weights: float, stored: StoredBytes, stage: ZeroStage, shards: int) -> ModelStates:
    """Weights, gradients and optimizer state of one rank (Rajbhandari et al. 2020, section 5).

    A framework with master weights keeps the whole weight for compute beside a shard of the master
    until stage 3 shards both. One without (FSDP) stores a shard and keeps a gathered copy.

    Args:
        weights: trainable weights of the rank, before any split over data-parallel ranks.
        shards: ranks that share the states: all of data (and context) parallelism, or those of
            one replica under hybrid sharding.

    Raises:
        ValueError: no weights or ranks.
    """
    if weights < 0 or shards < 1:
        raise ValueError(f"no such states: {weights} weights over {shards} ranks")
    share = weights / shards if stage.shards_states else weights
    gathers_copy = stage.shards_states and stage.keeps_weights and not stored.master
    is_whole = stage.keeps_weights and not gathers_copy
    held = weights if stage.holds_full_gradients else share
    return ModelStates(
        parameters=(weights if is_whole else share) * stored.weight,
        master_weights=share * stored.master,
        gradients=held * stored.gradient,
        optimizer_state=share * stored.optimizer,
        gathered_parameters=weights * stored.gathered if gathers_copy else 0.0,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightBytes:
    """Bytes that one parameter element of a rank's tensor-parallel shard adds on each device.

    Names are those of ``MemoryBreakdown``, whose bytes these are when multiplied by the number of
    elements. They are linear in the weights but for ``gathered_in_flight``.

    Attributes:
        gathered_in_flight: copy for compute that lives only while its unit (block) is in use;
            the caller counts it for the units that are in flight at once.
        gradients_made: of a unit whose backward runs: what autograd made, until it is added to
            ``gradients`` or sent.
        gradients_sent: of a unit whose gradients are under way to other ranks: FSDP2 puts them in
            one buffer.
        optimizer_step: passing memory of the optimizer's step, when no activation is left.
    """

    parameters: float
    gradients: float
    optimizer_state: float
    gathered_parameters: float
    gathered_in_flight: float
    gradients_made: float
    gradients_sent: float
    optimizer_step: float


def weight_bytes(
    *, precision: str, optimizer: str, dp: int, stage: ZeroStage, trainable: bool = True
) -> WeightBytes:
    """Bytes per parameter element as the runtime trains: ``model_states`` of fp32 weights.

    Args:
        precision: ``fp32``, ``bf16`` or ``fp16``.
        optimizer: a name in ``optimizers.OPTIMIZERS``.
        dp: data-parallel ranks.
        stage: of ZeRO.
        trainable: frozen parameters have neither gradient nor optimizer state.

    Raises:
        ValueError: unknown precision or optimizer, or no ranks.
    """
    if precision not in COMPUTE_BYTES:
        raise ValueError(f"unknown precision {precision!r}; known: {', '.join(COMPUTE_BYTES)}")
    if dp < 1:
        raise ValueError(f"dp is a number of ranks, not {dp}")
    needs = optimizer_named(optimizer)
    stored = StoredBytes(
        weight=STORED_BYTES,
        master=0,
        gradient=trainable * STORED_BYTES,
        gathered=COMPUTE_BYTES[precision],
        optimizer=trainable * needs.state_bytes,
    )
    states = model_states(1, stored, stage, dp)
    copied = precision != "fp32" or (stage.shards_states and dp > 1)
    copy_bytes = stored.gathered if copied else 0.0
    updated = trainable / (dp if stage.shards_states else 1)
    is_split = trainable and stage.shards_states and dp > 1
    adds_in_place = stage.holds_full_gradients and precision == "fp32"
    return WeightBytes(
        parameters=states.parameters,
        gradients=states.gradients,
        optimizer_state=states.optimizer_state,
        gathered_parameters=copy_bytes if stage.keeps_weights else 0.0,
        gathered_in_flight=0.0 if stage.keeps_weights else copy_bytes,
        gradients_made=COMPUTE_BYTES[precision] if is_split and not adds_in_place else 0.0,
        gradients_sent=STORED_BYTES if is_split else 0.0,
        optimizer_step=updated * needs.temporary_bytes,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """Bytes that a rank holds at one moment of its step beside its states.

    Names are those of ``MemoryBreakdown``; ``gathered_parameters`` are those in use beside the
    copies that are kept.
    """

    gathered_parameters: float = 0.0
    activations: float = 0.0
    transient: float = 0.0
    communication_buffers: float = 0.0
    workspace: float = 0.0


def worst_moment(states: ModelStates, moments: Iterable[Moment]) -> MemoryBreakdown:
    """The memory of a rank at the moment when it holds most.

    Raises:
        ValueError: no moment is given.
    """
    held = [_at(states, moment) for moment in moments]
    if not held:
        raise ValueError("a step has at least one moment")
    return max(held, key=lambda breakdown: breakdown.total)


def _at(states: ModelStates, moment: Moment) -> MemoryBreakdown:
    return MemoryBreakdown(
        parameters=math.ceil(states.parameters),
        master_weights=math.ceil(states.master_weights),
        gradients=math.ceil(states.gradients),
        optimizer_state=math.ceil(states.optimizer_state),
        gathered_parameters=math.ceil(states.gathered_parameters + moment.gathered_parameters),
        activations=math.ceil(moment.activations),
        transient=math.ceil(moment.transient),
        communication_buffers=math.ceil(moment.communication_buffers),
        workspace=math.ceil(moment.workspace),
    )


def routed_tokens(
    tokens: float, *, experts_per_token: int, expert_ranks: int, load_factor: float = 1.0
) -> float:
    """Tokens that the experts of one rank see, each as often as it is routed there.

    Activations of experts are those of routed tokens; a mixture priced as a dense layer of all its
    experts would count every token for every expert.

    Args:
        tokens: of all ranks that share the experts.
        expert_ranks: how many those are.
        load_factor: the capacity factor where tokens above it are dropped, else the load of the
            fullest rank over the mean.

    Raises:
        ValueError: numbers that route nothing.
    """
    if experts_per_token < 1 or expert_ranks < 1 or load_factor <= 0:
        raise ValueError(
            f"cannot route: {experts_per_token} experts a token, {expert_ranks} ranks, "
            f"load factor {load_factor}"
        )
    return tokens * experts_per_token * load_factor / expert_ranks
