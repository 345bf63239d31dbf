"""Messages between the ranks of ``cp`` as calls of the graph of one of them.

An exchange reads a tensor as its producer leaves it and gives it as its reader wants it; its
arguments say by which motions (``redistribute``), over how many ranks. What a motion moves is the
larger of what it reads and what it gives, which is the whole tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from autoplan.sharding.redistribute import Message, Motion, motion_messages
from autoplan.trace.graph import BatchInt, OpNode, Ref, TensorMeta

EXCHANGE = "autoplan.exchange.default"


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """What an exchange does.

    Attributes:
        forward, backward: of the tensor, and of its gradient (``identity`` where none comes).
        ranks: of ``cp``.
        dim: which is cut or put together; None where none is.
        parts: of the dim, each of which is cut for itself (``placement.Shard``).
    """

    forward: Motion
    backward: Motion
    ranks: int
    dim: int | None = None
    parts: int | BatchInt = 1

    def call(self, name: str, read: Ref, made: TensorMeta, reader: OpNode) -> OpNode:
        """The node of an exchange in front of a reader; a view where nothing learns."""
        is_view = self.forward in ("slice", "identity") and not made.requires_grad
        return OpNode(
            name=name,
            kind="call",
            target=EXCHANGE,
            args=(read, self.forward, self.backward, self.ranks, self.dim, self.parts),
            outputs=(made,),
            alias_of=(read if is_view else None,),
            module=reader.module,
            where=reader.where,
        )

    def messages(self, whole_bytes: int) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
        """Collectives of the forward and of the backward, as (kind, bytes)."""
        return (
            motion_messages(self.forward, whole_bytes, self.ranks),
            motion_messages(self.backward, whole_bytes, self.ranks),
        )


def exchange_of(node: OpNode) -> Exchange:
    """What an exchange node does."""
    _, forward, backward, ranks, dim, parts = node.args
    return Exchange(
        forward=cast(Motion, forward),
        backward=cast(Motion, backward),
        ranks=cast(int, ranks),
        dim=cast(int | None, dim),
        parts=cast(int | BatchInt, parts),
    )
