"""A strategy: the placements of one operator's inputs and outputs on one mesh axis.

Rules (``rules/``, one file per operator family) make strategies; everything else reads them. An
input is described by a ``Port``: the placement in which the operator reads it, and the placement
in which the operator's backward leaves its gradient. The two determine the forward and backward
message of the edge (``redistribute.conversion``).
"""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.sharding.placement import Placement


@dataclass(frozen=True, slots=True)
class Port:
    """How one operand is read: its placement, and the placement of the gradient left for it.

    ``grad`` is ``Shard`` exactly where ``placement`` is; for ``Partial`` it is ``Replicate``; for
    ``Replicate`` it is ``Replicate`` (every rank computes the same gradient) or ``Partial`` (every
    rank computes a term of it).
    """

    placement: Placement
    grad: Placement


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """One way to run an operator on one axis.

    Attributes:
        label: unique among the operator's strategies and stable between releases, since plan files
            hold it: ``replicate``, or the index letter that is sharded (``n``), or ``partial``.
        inputs: one port per ``OpNode.operands`` entry, in order.
        outputs: one placement per output tensor, in order.
        splits_work: whether a rank does 1/size of the operator's flops (else all of it).
        local_op: name of the function in ``autoplan.runtime.ops`` that stands in for the operator
            on local shards; None when the operator itself, on local shards, is right. The function
            takes the operator's own arguments, then ``axis``.
    """

    label: str
    inputs: tuple[Port, ...]
    outputs: tuple[Placement, ...]
    splits_work: bool
    local_op: str | None = None
