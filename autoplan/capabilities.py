"""What the runtime can execute: the one table that search and runtime both read.

The search offers only what stands here, so that no plan is made that cannot run. Data parallelism
is by ZeRO stage, on PyTorch's FSDP2; ``cost_models.zero`` says what each stage holds and sends.
"""

from __future__ import annotations

from cost_models.zero import ZERO_STAGES, ZeroStage, zero_stage

__all__ = ["BUCKET_BYTES", "RUNNABLE_PRECISIONS", "ZERO_STAGES", "ZeroStage", "zero_stage"]

# Gradients of stage 0 are summed together in buckets of at most so many bytes, larger ones alone.
BUCKET_BYTES = 25 * 2**20

RUNNABLE_PRECISIONS = ("fp32", "bf16")
