"""Device memory of one training step, by category."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryBreakdown:
    """Bytes on one device at the worst moment of the step.

    Attributes:
        parameters: stored weights (a shard of them under ZeRO 1-3); the fp32 master copy is apart.
        master_weights: fp32 copy of low-precision weights.
        gradients: what lives between microbatches.
        optimizer_state: moments and the like.
        gathered_parameters: unsharded weights held or prefetched under ZeRO 1-3.
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
