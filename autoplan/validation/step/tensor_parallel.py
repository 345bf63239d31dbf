"""Messages around a pair of products split by columns, then by rows (Megatron's blocks).

Without sequence parallelism a block sums its output forward and its input's gradient backward (g
and f of Shoeybi et al. 2019). With it, each sum is a reduce-scatter and each entry a gather, and
the backward gathers the input once more for the weights' gradients (Korthikanti et al. 2022,
section 4.2.2). Sums of gradients run beside the product of the weights' gradients. Tokens go to
their experts before they are gathered, so as often as they are routed (Megatron-Core's all-to-all
dispatcher).
"""

from __future__ import annotations

from autoplan.validation.setups.setup import Setup
from autoplan.validation.step.passes import ACTIVATION_BYTES, Message, Part, Pass


def entry_and_exit(setup: Setup, copies: int = 1) -> Part:
    """Messages of one block over ``tp``; ``copies`` of each token pass through it."""
    if setup.tp == 1:
        return Part()
    nbytes = setup.tokens * setup.model.hidden * ACTIVATION_BYTES
    beside = setup.framework.overlaps_tensor_parallel
    under_weights = beside or setup.framework.overlaps_input_gradients
    if not setup.sequence_parallel:
        total = Message(kind="all_reduce", nbytes=nbytes, axis="tp", beside=beside)
        hidden = Message(kind="all_reduce", nbytes=nbytes, axis="tp", beside=under_weights)
        return Part(forward=Pass(messages=(total,)), inputs=Pass(messages=(hidden,)))
    nbytes *= copies
    gather = Message(kind="all_gather", nbytes=nbytes, axis="tp", beside=beside)
    scatter = Message(kind="reduce_scatter", nbytes=nbytes, axis="tp", beside=beside)
    return Part(
        forward=Pass(messages=(gather, scatter)),
        inputs=Pass(
            messages=(
                gather,
                Message(kind="reduce_scatter", nbytes=nbytes, axis="tp", beside=under_weights),
                Message(kind="all_gather", nbytes=nbytes, axis="tp", beside=under_weights),
            )
        ),
    )
