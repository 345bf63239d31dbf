"""What an edge of the graph costs in messages: from a producer's placement to a reader's port.

An edge moves the tensor forward (producer's placement to port) and its gradient backward (port's
gradient to the placement that the producer expects, ``grad_of``). Either way one motion does
it. Gradients of every pair are dual: where the forward sums, the backward copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autoplan.errors import PlanError
from autoplan.sharding.placement import Partial, Placement, Replicate, Shard, grad_of
from autoplan.sharding.strategies import Port

Motion = Literal[
    "identity",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "regroup",
    "slice",
    "mask",
]
Message = tuple[str, int]

SILENT: tuple[Motion, ...] = "identity", "slice", "mask"
"""Motions that send nothing."""

_MOTIONS: dict[tuple[type, type], Motion] = {
    (Replicate, Replicate): "identity",
    (Replicate, Shard): "slice",
    (Replicate, Partial): "mask",
    (Shard, Replicate): "all_gather",
    (Partial, Partial): "identity",
    (Partial, Replicate): "all_reduce",
    (Partial, Shard): "reduce_scatter",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversion:
    """The motions of one edge.

    Attributes:
        source: the producer's placement; its gradient is expected in ``grad_of(source)``.
        target: the port in which the reader takes the tensor and leaves the gradient.
        forward: motion of the tensor. ``slice`` keeps the own chunk; ``mask`` keeps the tensor on
            rank 0 and zeros elsewhere; ``all_to_all`` moves the shards to another dim; ``regroup``
            gathers the dim and cuts it again by another number of parts.
        backward: motion of the gradient; ``identity`` when there is none.
    """

    source: Placement
    target: Port
    forward: Motion
    backward: Motion


def is_possible(producer: Placement, port: Port) -> bool:
    """Whether a reader with this port can follow this producer: a shard never becomes a partial."""
    return not (isinstance(producer, Shard) and isinstance(port.placement, Partial))


def conversion(producer: Placement, port: Port, *, differentiable: bool) -> Conversion | None:
    """The conversion of an edge; None when tensor and gradient are already where they belong.

    Raises:
        PlanError: when no conversion exists (``is_possible`` is false).
    """
    if not is_possible(producer, port):
        raise PlanError(
            f"a tensor placed {producer!r} cannot be read as {port.placement!r}; "
            "choose another strategy for the producer or the reader"
        )
    forward = _motion(producer, port.placement)
    backward = _motion(port.grad, grad_of(producer)) if differentiable else "identity"
    if forward == backward == "identity":
        return None
    return Conversion(source=producer, target=port, forward=forward, backward=backward)


def messages(
    conversion: Conversion, nbytes: int, axis_size: int
) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Collectives of the forward and of the backward, as (kind, bytes).

    Bytes are those of the whole tensor that a collective is about, for a tensor of ``nbytes``
    globally: what every rank has for all_reduce, the gathered output for all_gather, the input for
    reduce_scatter, the local tensor for all_to_all.
    """
    return (
        motion_messages(conversion.forward, nbytes, axis_size),
        motion_messages(conversion.backward, nbytes, axis_size),
    )


def _motion(source: Placement, target: Placement) -> Motion:
    if source == target:
        return "identity"
    if isinstance(source, Shard) and isinstance(target, Shard):
        return "regroup" if source.dim == target.dim else "all_to_all"
    return _MOTIONS[type(source), type(target)]


def motion_messages(motion: Motion, nbytes: int, axis_size: int) -> tuple[Message, ...]:
    """Collectives of one motion, as (kind, bytes), for a tensor of ``nbytes`` globally."""
    if motion in SILENT:
        return ()
    if motion == "regroup":
        return (("all_gather", nbytes),)
    return ((motion, nbytes // axis_size if motion == "all_to_all" else nbytes),)
