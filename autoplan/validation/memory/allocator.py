"""What PyTorch's caching allocator reserves beyond the tensors that are alive.

A tensor is served from a free block that is large enough, so blocks freed by smaller tensors do not
serve a larger one, and blocks of one stream do not serve another.

- Where the loss's tensors are the largest, the logits in the compute precision (freed once their
  fp32 copy is there) and what one layer's forward needs in passing stay reserved beside them.
- FSDP's reductions run in a stream of their own: shards of gradients stay reserved there beside
  the whole gradients of a pipeline. The buffer that is reduced (two in flight) is as large as a
  layer, larger than other blocks of a rank without the loss.
- PyTorch's pipelines return the logits of all microbatches as one tensor, the largest of all.
- Tensors that pass are allocated between those that stay, and sizes are rounded: ``SLACK`` of all
  that is reserved, assumed. In a pipeline, with microbatches of different age and gradients that
  stay, it is ``PIPELINE_SLACK``, the one fitted constant here (torchtitan's six pipelined runs,
  whose reserved memory differs by 9 % between runs of equal sizes).
"""

from __future__ import annotations

import math
from dataclasses import replace

from autoplan.validation.memory import transients
from autoplan.validation.ranks.held_states import shards_of, stage_of
from autoplan.validation.ranks.stages import ONE_LAYER, Chunk, weights_of
from autoplan.validation.setups.setup import Setup
from cost_models.memory import MemoryBreakdown

SLACK = 0.01
PIPELINE_SLACK = 0.05


def reserved_for_loss(setup: Setup) -> float:
    """Bytes beside the loss's tensors on a rank that has the head."""
    forward = transients.layer_forward_bytes(setup)
    if is_torch_pipeline(setup):
        return forward + setup.microbatches * transients.logits_bytes(setup)
    return forward + transients.logits_bytes(setup)


def reserved_for_reductions(setup: Setup, held: tuple[Chunk, ...]) -> float:
    """Bytes of a pipeline's reductions at the last microbatch, which live in other streams."""
    if not (is_torch_pipeline(setup) and stage_of(setup).shards_states):
        return 0.0
    reduced = setup.framework.reduced_bytes
    weights = sum(weights_of(setup, chunk) for chunk in held)
    return reduced * (weights / shards_of(setup))


def reduced_buffers(setup: Setup) -> float:
    """Bytes that are being reduced: those of two layers."""
    if not (is_torch_pipeline(setup) and stage_of(setup).shards_states):
        return 0.0
    return 2 * setup.framework.reduced_bytes * weights_of(setup, ONE_LAYER)


def with_slack(setup: Setup, breakdown: MemoryBreakdown) -> MemoryBreakdown:
    """Adds what fragments take; analytic figures of hand-written frameworks have none."""
    if setup.framework.pointwise == "fused":
        return breakdown
    share = PIPELINE_SLACK if setup.pp > 1 else SLACK
    slack = math.ceil(share * breakdown.total)
    return replace(breakdown, workspace=breakdown.workspace + slack)


def is_torch_pipeline(setup: Setup) -> bool:
    """Megatron-LM, which has hand-written kernels, has a pipeline of its own too."""
    return setup.pp > 1 and setup.framework.pointwise != "fused"
