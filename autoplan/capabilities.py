"""What the runtime can execute: the one table that search and runtime both read.

The search offers only what stands here, so that no plan is made that cannot run.

Data parallelism by ZeRO stage (PyTorch FSDP2 underneath). "full" is the whole of a rank's tensor
parallel shard, "shard" is 1/dp of it, "mb" a microbatch. Between the microbatches of a step,
stage 1 keeps unsharded gradients and reduces them once, at the last microbatch; stages 2 and 3
reduce-scatter after each.

=====  =========  ===============  ================  =================================
stage  weights    gradients held   optimizer, master  messages over dp
=====  =========  ===============  ================  =================================
0      full       full             full              1 all-reduce a step
1      full       full             shard             1 all-gather and 1 reduce-scatter a step
2      full       shard            shard             1 all-gather a step, 1 reduce-scatter a mb
3      shard      shard            shard             2 all-gathers and 1 reduce-scatter a mb
=====  =========  ===============  ================  =================================

In stages 1 and 2 the weights are gathered at the first forward of a step and freed after the
optimizer step; both the shard and the gathered copy live during the step.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ZeroStage:
    """How one ZeRO stage runs; counts are per unit (block or root) of the model.

    Attributes:
        shards_states: the optimizer state and the stored weights are split over dp.
        keeps_weights: gathered weights stay until the end of the step (else freed after each use).
        holds_full_gradients: unsharded gradients live between microbatches.
        gathers_per_step, gathers_per_microbatch: all-gathers of the weights.
        reductions_per_step, reductions_per_microbatch: reductions of the gradients.
    """

    stage: int
    shards_states: bool
    keeps_weights: bool
    holds_full_gradients: bool
    gathers_per_step: int
    gathers_per_microbatch: int
    reductions_per_step: int
    reductions_per_microbatch: int


ZERO_STAGES = (
    ZeroStage(
        stage=0, shards_states=False, keeps_weights=True, holds_full_gradients=True,
        gathers_per_step=0, gathers_per_microbatch=0,
        reductions_per_step=1, reductions_per_microbatch=0,
    ),
    ZeroStage(
        stage=1, shards_states=True, keeps_weights=True, holds_full_gradients=True,
        gathers_per_step=1, gathers_per_microbatch=0,
        reductions_per_step=1, reductions_per_microbatch=0,
    ),
    ZeroStage(
        stage=2, shards_states=True, keeps_weights=True, holds_full_gradients=False,
        gathers_per_step=1, gathers_per_microbatch=0,
        reductions_per_step=0, reductions_per_microbatch=1,
    ),
    ZeroStage(
        stage=3, shards_states=True, keeps_weights=False, holds_full_gradients=False,
        gathers_per_step=0, gathers_per_microbatch=2,
        reductions_per_step=0, reductions_per_microbatch=1,
    ),
)  # fmt: skip

# Gradients of stage 0 are summed together in buckets of at most so many bytes, larger ones alone.
BUCKET_BYTES = 25 * 2**20

RUNNABLE_PRECISIONS = ("fp32", "bf16")
