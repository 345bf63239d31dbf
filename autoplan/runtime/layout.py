"""Which piece of each parameter a rank holds.

A parameter is held by the ``pp`` ranks whose stages read it. There it is split first over ``tp``
(evenly, on the dim that the plan chose), and the piece again over ``dp`` where the ZeRO stage
shards (by FSDP2). Both splits are contiguous chunks, so that a rank's piece is a box of the global
tensor. Everything that must know where a piece lies (checkpoints, norms, loading) reads it here.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.runtime.mesh import RankMesh


@dataclass(frozen=True, slots=True)
class Box:
    """A box of a global tensor: its first index and its size along every dim."""

    start: tuple[int, ...]
    shape: tuple[int, ...]

    def overlap(self, other: Box) -> Box | None:
        """The box common to both; None when it is empty."""
        start = tuple(max(a, b) for a, b in zip(self.start, other.start, strict=True))
        stop = tuple(
            min(a + n, b + m)
            for a, n, b, m in zip(self.start, self.shape, other.start, other.shape, strict=True)
        )
        if any(high <= low for low, high in zip(start, stop, strict=True)):
            return None
        return Box(start, tuple(high - low for low, high in zip(start, stop, strict=True)))

    def within(self, outer: Box) -> tuple[slice, ...]:
        """The slices that select this box from a tensor that holds ``outer``."""
        return tuple(
            slice(a - b, a - b + n)
            for a, b, n in zip(self.start, outer.start, self.shape, strict=True)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterLayout:
    """Where a parameter lies.

    Attributes:
        shape: global.
        tp_dim, dp_dim: the dims that ``tp`` and ``dp`` split, if any; ``dp`` within each replica.
        pp_ranks: the ranks of ``pp`` that hold it, each the whole.
    """

    shape: tuple[int, ...]
    tp_dim: int | None = None
    dp_dim: int | None = None
    pp_ranks: tuple[int, ...] = (0,)

    def tp_shape(self, tp: int) -> tuple[int, ...]:
        """Shape of the piece on one ``tp`` rank, before any split over ``dp``."""
        return tuple(n // tp if dim == self.tp_dim else n for dim, n in enumerate(self.shape))

    def box(self, mesh: RankMesh) -> Box:
        """The piece of this rank."""
        start, shape = [0] * len(self.shape), list(self.shape)
        if self.tp_dim is not None:
            shape[self.tp_dim] //= mesh.tp
            start[self.tp_dim] = mesh.tp_rank * shape[self.tp_dim]
        if self.dp_dim is not None:
            whole = shape[self.dp_dim]
            chunk = -(-whole // mesh.shards)
            first = min(chunk * mesh.shard_rank, whole)
            start[self.dp_dim] += first
            shape[self.dp_dim] = min(chunk, whole - first)
        return Box(tuple(start), tuple(shape))

    def is_first_copy(self, mesh: RankMesh) -> bool:
        """Whether this rank is the one of those that hold its piece to count or write it."""
        first_tp = self.tp_dim is not None or mesh.tp_rank == 0
        first_dp = mesh.dp_rank == 0 if self.dp_dim is None else mesh.replica == 0
        return first_tp and first_dp and mesh.pp_rank == self.pp_ranks[0]


def dp_shard_dim(shape: tuple[int, ...], tp_dim: int | None, shards: int) -> int | None:
    """The dim of a tensor parallel piece that FSDP2 splits over ranks of ``dp``.

    The first dim that divides evenly; else dim 0 unevenly; None (keep it whole) for a scalar, and
    where dim 0 is split by ``tp`` as well: DTensor gathers an uneven shard nested in another shard
    of the same dim wrongly, without an error.
    """
    for dim, size in enumerate(shape):
        if size % shards == 0 and size > 0:
            return dim
    return 0 if shape and tp_dim != 0 else None
