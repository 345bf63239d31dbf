"""Notices when ranks that must work on the same samples are fed different ones.

Ranks that differ in ``tp`` or ``pp`` alone share every sample: each computes a part of the same
operators, or some of them. Fed different batches they would train on nonsense, with plausible
losses and no error.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from autoplan.errors import PlanError
from autoplan.runtime.mesh import RankMesh

_INFINITE = 1e200  # sums of it are finite, and equal themselves


def check_same_batch(inputs: Sequence[Tensor], mesh: RankMesh) -> None:
    """Compares this rank's inputs with those of its model-parallel peers, by one number each.

    Raises:
        PlanError: on all these ranks, when they differ.
    """
    peers = mesh.pp * mesh.tp
    if peers == 1 or not inputs:
        return
    own = torch.stack([_fingerprint(value) for value in inputs])
    bounds = torch.stack([own, -own])
    for axis, size in (("tp", mesh.tp), ("pp", mesh.pp)):
        if size > 1:
            dist.all_reduce(bounds, dist.ReduceOp.MAX, group=mesh.group(axis))
    most, least = bounds[0], -bounds[1]
    if not torch.equal(most, least):
        raise PlanError(
            f"the {peers} ranks of data rank {mesh.dp_rank} are fed different batches: feed them "
            "the same, with DistributedSampler(num_replicas=pm.data_world, rank=pm.data_rank) or "
            "pm.shard_batch"
        )


def _fingerprint(value: Tensor) -> Tensor:
    """A number that changes with the values and with the order of the rows."""
    if not value.numel():
        return torch.zeros((), dtype=torch.float64, device=value.device)
    rows = value.reshape(max(value.shape[:1], default=1), -1).sum(1, dtype=torch.float64)
    if value.is_floating_point():
        rows = rows.nan_to_num(posinf=_INFINITE, neginf=-_INFINITE)
    return rows.dot(torch.arange(1.0, len(rows) + 1, dtype=rows.dtype, device=rows.device))
