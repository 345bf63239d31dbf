"""Seconds of the optimizer's step on one rank: its kernels only stream device memory.

A fused Adam reads weight, gradient and two moments and writes three of them (28 bytes). Before it
come the gradient's norm and scaling (12) and, with loss scaling, one more pass (8); after it the
copy for compute (6) and the zeroed gradient. PyTorch's multi-tensor kernels move more.
"""

from __future__ import annotations

from autoplan.validation.ranks.held_states import updated_weights
from autoplan.validation.ranks.stages import Chunk
from autoplan.validation.step.clock import Clock
from cost_models.compute import kernel_s
from cost_models.optimizers import optimizer
from cost_models.work import Streaming

FUSED_ADAM_BYTES = 28
NORM_AND_CLIP_BYTES = 12
UNSCALE_BYTES = 8
KERNELS = 16


def optimizer_s(clock: Clock, held: tuple[Chunk, ...]) -> float:
    """Seconds to update the weights of a rank with these chunks, split from ZeRO 1 on."""
    setup, framework = clock.setup, clock.setup.framework
    updated = updated_weights(setup, held)
    moved = NORM_AND_CLIP_BYTES + framework.gradient_bytes
    moved += UNSCALE_BYTES if setup.compute_dtype == "float16" else 0
    moved += 4 + framework.weight_bytes if framework.master_bytes else 0
    if framework.fuses_optimizer:
        moved += FUSED_ADAM_BYTES
    else:
        moved += optimizer(setup.optimizer).traffic_bytes
    return kernel_s(Streaming(bytes=updated * moved, kernels=KERNELS), clock.cluster.device)
