"""Weights, gradients and optimizer state of a published run's rank."""

from __future__ import annotations

from dataclasses import replace

from autoplan.validation.ranks.learned_weights import learned_weights
from autoplan.validation.ranks.stages import Chunk, weights_of
from autoplan.validation.setups.setup import Setup
from cost_models.memory import ModelStates, StoredBytes, model_states
from cost_models.optimizers import optimizer
from cost_models.zero import ZeroStage, zero_stage

NF4_BYTES = 0.5 + 4 / 64


def held_states(setup: Setup, chunks: tuple[Chunk, ...]) -> ModelStates:
    """States of a rank that holds these chunks.

    Experts are shared by fewer ranks than other weights: those of their data-parallel group.
    """
    if setup.tuning != "all":
        return _tuned(setup, chunks)
    stored, stage = stored_bytes(setup), stage_of(setup)
    experts = expert_weights(setup, chunks)
    others = sum(weights_of(setup, chunk) for chunk in chunks) - experts
    of_others = model_states(others, stored, stage, shards_of(setup))
    of_experts = model_states(experts, stored, stage, max(1, shards_of(setup) // setup.ep))
    return of_others + of_experts


def updated_weights(setup: Setup, chunks: tuple[Chunk, ...]) -> float:
    """Weights that the rank's optimizer updates."""
    if setup.tuning != "all":
        return learned_weights(setup)
    total = sum(weights_of(setup, chunk) for chunk in chunks)
    if not stage_of(setup).shards_states:
        return total
    experts = expert_weights(setup, chunks)
    shards = shards_of(setup)
    return (total - experts) / shards + experts / max(1, shards // setup.ep)


def stage_of(setup: Setup) -> ZeroStage:
    """How the run's ZeRO stage is executed; one rank has nothing to share."""
    stage = setup.zero if shards_of(setup) > 1 else 0
    return zero_stage(stage, pipeline=setup.pp > 1, accumulates=setup.microbatches > 1)


def shards_of(setup: Setup) -> int:
    """Ranks that share the states: all with the same weights, or those of one replica."""
    return setup.dp * setup.cp // setup.replicas


def stored_bytes(setup: Setup) -> StoredBytes:
    """Bytes per weight; moments are fp32 beside master weights, else they are like the weights."""
    framework = setup.framework
    moment_bytes = 4 if framework.master_bytes else framework.weight_bytes
    return StoredBytes(
        weight=framework.weight_bytes,
        master=framework.master_bytes,
        gradient=framework.gradient_bytes,
        gathered=framework.gathered_bytes,
        optimizer=optimizer(setup.optimizer).state_bytes * moment_bytes / 4,
    )


def expert_weights(setup: Setup, chunks: tuple[Chunk, ...]) -> float:
    """Weights of the rank's experts, before any split over data-parallel ranks."""
    model = setup.model
    if not model.experts:
        return 0.0
    layers = sum(chunk.layers for chunk in chunks)
    return layers * model.feed_forward_parameters / setup.ep / setup.tp


def _tuned(setup: Setup, chunks: tuple[Chunk, ...]) -> ModelStates:
    """Frozen weights, whole or in 4-bit blocks of 64 with an fp32 scale, and the few that learn."""
    total = sum(weights_of(setup, chunk) for chunk in chunks)
    tables = sum(chunk.embedding for chunk in chunks) * setup.model.embedding_parameters
    frozen_bytes = NF4_BYTES if setup.quantised else setup.framework.weight_bytes
    stage = stage_of(setup)
    share = shards_of(setup) if stage.shards_states else 1
    learned = model_states(learned_weights(setup), stored_bytes(setup), stage, shards_of(setup))
    frozen = (total - tables) * frozen_bytes + tables * setup.framework.weight_bytes
    return replace(learned, parameters=learned.parameters + frozen / share)
