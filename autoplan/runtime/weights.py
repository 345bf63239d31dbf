"""Gives every rank its piece of the model's weights, the same whatever the plan.

The weights of rank 0 count, as in DDP: each is sent to all ranks, which keep their ``tp`` piece. On
``tp`` a piece is a DTensor, so that optimizers and norms see one tensor; without ``tp`` it is an
ordinary tensor. In a mixed precision plan the stored weights are float32.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import Replicate as DReplicate
from torch.distributed.tensor import Shard as DShard

from autoplan.codegen.emitted import Emitted, StoredTensor
from autoplan.errors import PlanError
from autoplan.runtime.layout import ParameterLayout
from autoplan.runtime.mesh import RankMesh
from autoplan.sharding.placement import Shard

MASTER_DTYPE = torch.float32


class WeightSource:
    """Hands out this rank's ``tp`` pieces of rank 0's weights and buffers, one tensor at a time.

    Every rank must ask for the same tensors in the same order. Between calls only what was handed
    out takes memory, so that a model whose whole weights do not fit a device can be sharded unit
    by unit.

    Attributes:
        layouts: how every parameter and buffer is laid out over ``pp`` and ``tp``, by original
            name.
    """

    def __init__(
        self,
        model: nn.Module,
        emitted: Emitted,
        mesh: RankMesh,
        compute_dtype: torch.dtype | None,
    ) -> None:
        """Checks the model against the program.

        Args:
            compute_dtype: of a mixed precision plan; the floating-point weights are then stored in
                float32. None keeps every weight's own dtype.

        Raises:
            PlanError: when the model lacks a tensor or has another shape.
        """
        self._emitted = emitted
        self._mesh = mesh
        self._is_mixed = compute_dtype is not None
        parameters = dict(model.named_parameters(remove_duplicate=False))
        buffers = dict(model.named_buffers(remove_duplicate=False))
        self._parameters = {
            name: _find(parameters, name, stored) for name, stored in emitted.parameters.items()
        }
        self._buffers = {
            name: _find(buffers, name, stored) for name, stored in emitted.buffers.items()
        }
        holders: dict[str, set[int]] = {}
        for stage in emitted.stages:
            for name in (*stage.parameters, *stage.buffers):
                holders.setdefault(name, set()).add(stage.rank)
        self.layouts = {
            name: ParameterLayout(
                shape=stored.meta.shape,
                tp_dim=_tp_dim(stored, mesh),
                pp_ranks=tuple(sorted(holders.get(name, range(mesh.pp)))),
            )
            for name, stored in (*emitted.parameters.items(), *emitted.buffers.items())
        }

    def parameter(self, name: str) -> nn.Parameter:
        """This rank's piece of a weight.

        Raises:
            PlanError: when rank 0's is on ``meta``.
        """
        source = self._parameters[name]
        dtype = MASTER_DTYPE if self._is_mixed and source.is_floating_point() else source.dtype
        return nn.Parameter(self._piece(name, source, dtype), requires_grad=source.requires_grad)

    def placeholder(self, name: str) -> nn.Parameter:
        """Stands in for a weight that is yet to be handed out; takes no memory."""
        return nn.Parameter(self._parameters[name].to("meta"), requires_grad=False)

    def buffer(self, name: str) -> Tensor:
        """This rank's piece of a buffer, in the dtype that the program reads.

        Raises:
            PlanError: when rank 0's is on ``meta``.
        """
        source = self._buffers[name]
        mixed = self._is_mixed and source.is_floating_point()
        traced = getattr(torch, self._emitted.buffers[name].meta.dtype)
        return self._piece(name, source, traced if mixed else source.dtype)

    def _piece(self, name: str, source: Tensor, dtype: torch.dtype) -> Tensor:
        return _piece(_from_rank_0(source, name, self._mesh, dtype), self.layouts[name], self._mesh)


def _find(own: Mapping[str, Tensor], name: str, stored: StoredTensor) -> Tensor:
    if name not in own:
        raise PlanError(
            f"the plan names {name!r}, which the model does not have: plan this model anew"
        )
    if tuple(own[name].shape) != stored.meta.shape:
        raise PlanError(
            f"{name!r} has shape {tuple(own[name].shape)} but the plan is for "
            f"{stored.meta.shape}: plan this model anew"
        )
    return own[name]


def _tp_dim(stored: StoredTensor, mesh: RankMesh) -> int | None:
    placement = stored.placement
    if mesh.tp == 1 or not isinstance(placement, Shard):
        return None
    assert placement.parts == 1, "stored weights are contiguous shards"
    return placement.dim


def _from_rank_0(source: Tensor, name: str, mesh: RankMesh, dtype: torch.dtype) -> Tensor:
    """The whole tensor of rank 0, as a new tensor on this rank's device."""
    if mesh.rank == 0:
        if source.is_meta:
            raise PlanError(
                f"{name!r} is on the meta device: give rank 0 the model with its weights"
            )
        whole = source.detach().to(mesh.device, dtype, copy=True).contiguous()
    else:
        whole = torch.empty(source.shape, dtype=dtype, device=mesh.device)
    if mesh.world_size > 1:
        dist.broadcast(whole, src=0)
    return whole


def _piece(whole: Tensor, layout: ParameterLayout, mesh: RankMesh) -> Tensor:
    if mesh.tp == 1:
        return whole
    if layout.tp_dim is None:
        local, placement = whole, DReplicate()
    else:
        own = whole.chunk(mesh.tp, layout.tp_dim)[mesh.tp_rank]
        local = own.clone(memory_format=torch.contiguous_format)  # a view would hold the whole
        placement = DShard(layout.tp_dim)
    return DTensor.from_local(
        local,
        mesh.axis("tp"),
        [placement],
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )


def local(tensor: Tensor) -> Tensor:
    """The memory of this rank's piece, outside autograd."""
    if isinstance(tensor, DTensor):
        with torch.no_grad():
            return tensor.to_local()
    return tensor.detach()
