"""Running statistics of BatchNorms that normalise each rank's rows by themselves.

Every forward moves a rank's statistics by those of its own rows. When a step is over they are
averaged over ``dp``, so that all ranks hold, save and evaluate by the same. Since moving is linear,
that is what they would be had each microbatch moved them by the mean of the ranks' statistics.
(PyTorch's DDP keeps those of its first rank, and forgets what the others saw.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from autoplan.runtime.mesh import RankMesh
from autoplan.runtime.stages import LocalStage
from autoplan.runtime.weights import local


class RunningStatistics:
    """The buffers of this rank's stages that are averaged over ``dp``; often none."""

    def __init__(self, buffers: Sequence[Tensor], mesh: RankMesh) -> None:
        self._buffers = buffers if mesh.dp > 1 else ()
        self._mesh = mesh

    @torch.no_grad()
    def average(self) -> None:
        """Sets each to its mean over the ranks, the same on all, with one message."""
        if not self._buffers:
            return
        joined = torch.cat([buffer.double().flatten() for buffer in self._buffers])
        joined = self._mesh.sum_over_dp(joined) / self._mesh.dp
        parts = joined.split([buffer.numel() for buffer in self._buffers])
        for buffer, part in zip(self._buffers, parts, strict=True):
            buffer.copy_(part.view_as(buffer))


def statistics_of(
    stages: Sequence[LocalStage], buffers: Mapping[str, Tensor], mesh: RankMesh
) -> RunningStatistics:
    """Those of this rank's stages, by the names that the program gives."""
    averaged = [local(buffers[name]) for stage in stages for name in stage.emitted.averaged]
    return RunningStatistics(averaged, mesh)
