"""All ranks of one mesh axis in one process: tensors hold one value per rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._local_tensor import LocalTensor, LocalTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from autoplan.runtime.collectives import AxisGroup
from autoplan.sharding.placement import Partial, Placement, Replicate, Shard


@contextmanager
def simulated_ranks(size: int) -> Iterator[AxisGroup]:
    """``tp`` of this size; inside, plain tensors are alike on all ranks."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        with LocalTensorMode(size):
            mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))
            group = mesh.get_group("tp").group_name
            yield AxisGroup("tp", size, mesh.get_local_rank("tp"), group)
    finally:
        dist.destroy_process_group()


def per_rank(values: Sequence[Tensor]) -> Tensor:
    """One tensor that is ``values[r]`` on rank r."""
    return LocalTensor({rank: value.detach().clone() for rank, value in enumerate(values)})


def of_rank(value: Tensor) -> list[Tensor]:
    """The value on every rank; a plain tensor must have come from outside the ranks."""
    tensors = value._local_tensors
    return [tensors[rank].detach() for rank in sorted(tensors)]


def shards(whole: Tensor, placement: Placement, ranks: int) -> list[Tensor]:
    """What each rank holds of ``whole``; for a sum, random terms of it."""
    if isinstance(placement, Replicate):
        return [whole] * ranks
    if isinstance(placement, Partial):
        terms = [torch.randn_like(whole) for _ in range(ranks - 1)]
        return [*terms, whole - sum(terms)]
    pieces = [part.chunk(ranks, placement.dim) for part in _parts(whole, placement)]
    return [torch.cat([piece[rank] for piece in pieces], placement.dim) for rank in range(ranks)]


def combine(values: Sequence[Tensor], placement: Placement) -> Tensor:
    """The whole tensor; values that should be alike on all ranks are checked to be."""
    if isinstance(placement, Replicate):
        for value in values[1:]:
            torch.testing.assert_close(value, values[0], equal_nan=True)
        return values[0]
    if isinstance(placement, Partial):
        return torch.stack(list(values)).sum(0)
    pieces = [_parts(value, placement) for value in values]
    parts = [
        torch.cat([piece[p] for piece in pieces], placement.dim) for p in range(placement.parts)
    ]
    return torch.cat(parts, placement.dim)


def _parts(whole: Tensor, placement: Shard) -> tuple[Tensor, ...]:
    return whole.chunk(placement.parts, placement.dim)
