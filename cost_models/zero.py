"""ZeRO stages as they are really executed: the one table that pricing and runtime both read.

"full" is the whole of a rank's tensor-parallel shard, "shard" is 1/n of it, where n ranks share the
states; "mb" is a microbatch, "units" are the blocks and the root.

Without a pipeline, PyTorch's FSDP2 does what the stage says. Between the microbatches of a step
stage 1 keeps whole gradients and reduces them once, at the last microbatch; stages 2 and 3
reduce-scatter after each. With one microbatch a step no gradient waits for another.

In a pipeline, ``torch.distributed.pipelining`` turns gradient synchronisation and resharding off
until the last microbatch of a stage (``backward_maybe_with_nosync``). FSDP2 then keeps *unsharded*
gradients, in ``reduce_dtype``, and gathered weights through the step: stages 2 and 3 hold what
stage 1 holds.

=====  ========  ===========  =========  ==============  ======  ================================
stage  pipeline  accumulates  weights    gradients held  states  messages of each unit
=====  ========  ===========  =========  ==============  ======  ================================
0      either    either       full       full            full    1 all-reduce a step
1      no        no           full       shard           shard   1 gather, 1 reduce-scatter a step
1      no        yes          full       full            shard   1 gather, 1 reduce-scatter a step
2      no        either       full       shard           shard   1 gather a step, 1 scatter a mb
3      no        either       shard      shard           shard   2 gathers and 1 scatter a mb
1-3    yes       either       full       full            shard   1 gather, 1 reduce-scatter a step
=====  ========  ===========  =========  ==============  ======  ================================

In stages 1 and 2 the weights are gathered at the first forward of a step and freed after the
optimizer step; both the shard and the gathered copy live during the step.

Hybrid sharding (HSDP): the n ranks that share states are one of several replicas; each
reduce-scatter is followed by one all-reduce of the shard between replicas; bytes follow n alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mechanism = Literal["sum once", "gather once", "gather each use"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ZeroStage:
    """How one ZeRO stage runs; counts are per unit (block or root) of the model.

    Attributes:
        mechanism: weights are whole and gradients are summed; or weights are gathered once a step;
            or before each use.
        shards_states: the optimizer state and the stored weights are split over dp.
        keeps_weights: gathered weights stay until the end of the step (else freed after each use).
        holds_full_gradients: unsharded gradients live between microbatches.
        gathers_per_step, gathers_per_microbatch: all-gathers of the weights.
        reductions_per_step, reductions_per_microbatch: reductions of the gradients.
    """

    stage: int
    mechanism: Mechanism
    shards_states: bool
    keeps_weights: bool
    holds_full_gradients: bool
    gathers_per_step: int
    gathers_per_microbatch: int
    reductions_per_step: int
    reductions_per_microbatch: int


def _once(stage: int, *, holds_full_gradients: bool) -> ZeroStage:
    """Weights are gathered once a step, gradients reduced once."""
    return ZeroStage(
        stage=stage, mechanism="gather once",
        shards_states=True, keeps_weights=True, holds_full_gradients=holds_full_gradients,
        gathers_per_step=1, gathers_per_microbatch=0,
        reductions_per_step=1, reductions_per_microbatch=0,
    )  # fmt: skip


_WHOLE = ZeroStage(
    stage=0, mechanism="sum once",
    shards_states=False, keeps_weights=True, holds_full_gradients=True,
    gathers_per_step=0, gathers_per_microbatch=0,
    reductions_per_step=1, reductions_per_microbatch=0,
)  # fmt: skip
_SCATTERED = ZeroStage(
    stage=2, mechanism="gather once",
    shards_states=True, keeps_weights=True, holds_full_gradients=False,
    gathers_per_step=1, gathers_per_microbatch=0,
    reductions_per_step=0, reductions_per_microbatch=1,
)  # fmt: skip
_SHARDED = ZeroStage(
    stage=3, mechanism="gather each use",
    shards_states=True, keeps_weights=False, holds_full_gradients=False,
    gathers_per_step=0, gathers_per_microbatch=2,
    reductions_per_step=0, reductions_per_microbatch=1,
)  # fmt: skip

ZERO_STAGES = (_WHOLE, _once(1, holds_full_gradients=True), _SCATTERED, _SHARDED)


def zero_stage(stage: int, *, pipeline: bool, accumulates: bool) -> ZeroStage:
    """How a stage runs.

    Args:
        stage: 0 to 3.
        pipeline: the model is cut into pipeline stages.
        accumulates: a step has more than one microbatch.

    Raises:
        ValueError: there is no such stage.
    """
    if stage not in range(len(ZERO_STAGES)):
        raise ValueError(f"no ZeRO stage {stage}; use 0, 1, 2 or 3")
    if stage and pipeline:
        return _once(stage, holds_full_gradients=True)
    if stage == 1 and not accumulates:
        return _once(1, holds_full_gradients=False)
    return ZERO_STAGES[stage]
