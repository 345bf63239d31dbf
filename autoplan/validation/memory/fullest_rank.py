"""Device memory of a published run: the fullest pipeline rank at its worst moment, by category.

Two moments count: within the backward pass, and within the optimizer's step, when activations are
gone. In the backward a rank holds its states, the activations of the microbatches in flight, and
either the loss's tensors or one layer at work, whichever takes more. ``workspace`` is what the
caching allocator reserves beyond tensors; ``total - workspace`` is allocated. The device's context
is in neither.
"""

from __future__ import annotations

from dataclasses import replace

from autoplan.validation.memory import allocator, transients
from autoplan.validation.memory.activations import (
    activation_bytes,
    kept_by_embedding,
    kept_by_head,
    kept_by_layer,
)
from autoplan.validation.memory.gathers import gathered_in_flight, message_buffers
from autoplan.validation.ranks.held_states import held_states, updated_weights
from autoplan.validation.ranks.sizes import residual_tokens
from autoplan.validation.ranks.stages import Chunk, chunks, held_chunks, pipeline_of
from autoplan.validation.setups.setup import Setup
from cost_models.memory import MemoryBreakdown, Moment, worst_moment
from cost_models.optimizers import optimizer
from cost_models.schedule_memory import peak_held


def memory_of(setup: Setup) -> MemoryBreakdown:
    """Bytes on one device of the fullest rank.

    Raises:
        ScheduleError: the pipeline's schedule cannot run these numbers.
    """
    return max(memory_by_rank(setup), key=lambda breakdown: breakdown.total)


def memory_by_rank(setup: Setup) -> tuple[MemoryBreakdown, ...]:
    """Bytes on one device of every pipeline rank, each at its own worst moment."""
    every = _counted_chunks(setup)
    kept = peak_held(pipeline_of(setup), [_kept_by_chunk(setup, chunk) for chunk in every])
    held = held_chunks(setup, every)
    return tuple(_of_rank(setup, *rank) for rank in zip(held, kept, strict=True))


def _counted_chunks(setup: Setup) -> tuple[Chunk, ...]:
    if not setup.without_ends:
        return chunks(setup)
    return tuple(replace(chunk, embedding=False, head=False) for chunk in chunks(setup))


def _kept_by_chunk(setup: Setup, chunk: Chunk) -> float:
    """Bytes of one microbatch in flight; PyTorch's pipelines keep what a stage sends, too."""
    kept = chunk.layers * kept_by_layer(setup)
    kept += kept_by_embedding(setup) if chunk.embedding else 0.0
    if chunk.head:
        return kept + kept_by_head(setup)
    return kept + (_boundary_bytes(setup) if allocator.is_torch_pipeline(setup) else 0.0)


def _of_rank(setup: Setup, held: tuple[Chunk, ...], kept: float) -> MemoryBreakdown:
    states = held_states(setup, held)
    moments = (_backward(setup, held, kept), Moment(transient=_step_bytes(setup, held)))
    return allocator.with_slack(setup, worst_moment(states, moments))


def _step_bytes(setup: Setup, held: tuple[Chunk, ...]) -> float:
    """Passing tensors of the optimizer's step; kernels over many weights have none."""
    if setup.framework.fuses_optimizer:
        return 0.0
    return updated_weights(setup, held) * optimizer(setup.optimizer).temporary_bytes


def _backward(setup: Setup, held: tuple[Chunk, ...], kept: float) -> Moment:
    has_head = any(chunk.head for chunk in held)
    working = transients.layer_backward_bytes(setup) + allocator.reduced_buffers(setup)
    loss = transients.loss_bytes(setup) if has_head else 0.0
    beside = allocator.reserved_for_loss(setup) if has_head else 0.0
    transient = max(working, loss)
    return Moment(
        gathered_parameters=gathered_in_flight(setup, held),
        activations=kept + (_returned_logits(setup) if has_head else 0.0),
        transient=transient,
        communication_buffers=message_buffers(setup, held) + _received(setup, held),
        workspace=max(0.0, loss + beside - transient)
        + allocator.reserved_for_reductions(setup, held),
    )


def _boundary_bytes(setup: Setup) -> float:
    """What one stage sends to the next for one microbatch."""
    return activation_bytes(setup) * residual_tokens(setup) * setup.model.hidden


def _returned_logits(setup: Setup) -> float:
    """PyTorch's pipelines keep the logits of every microbatch and return them."""
    if not allocator.is_torch_pipeline(setup):
        return 0.0
    return setup.microbatches * transients.logits_bytes(setup)


def _received(setup: Setup, held: tuple[Chunk, ...]) -> float:
    """PyTorch's pipelines receive every microbatch of a step into a buffer of its own."""
    if setup.pp == 1:
        return 0.0
    received = sum((not chunk.embedding) + (not chunk.head) for chunk in held)
    microbatches = setup.microbatches if allocator.is_torch_pipeline(setup) else 1
    return received * microbatches * _boundary_bytes(setup)
