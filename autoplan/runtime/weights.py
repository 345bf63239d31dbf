"""Gives every rank its piece of the model's weights, the same whatever the plan.

The weights of rank 0 count, as in DDP: each is sent to all ranks, which keep their ``tp`` piece. On
``tp`` a piece is a DTensor, so that optimizers and norms see one tensor; without ``tp`` it is an
ordinary tensor. In a mixed precision plan the stored weights are float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import Replicate as DReplicate
from torch.distributed.tensor import Shard as DShard

from autoplan.codegen import Emitted, StoredTensor
from autoplan.errors import PlanError
from autoplan.runtime.layout import ParameterLayout
from autoplan.runtime.mesh import RankMesh
from autoplan.sharding.placement import Shard

MASTER_DTYPE = torch.float32


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The stored tensors of this rank by original name, and how each is laid out."""

    parameters: dict[str, nn.Parameter]
    buffers: dict[str, Tensor]
    layouts: dict[str, ParameterLayout]


def place_weights(
    model: nn.Module, emitted: Emitted, mesh: RankMesh, compute_dtype: torch.dtype | None
) -> Weights:
    """This rank's pieces of the weights and buffers of rank 0's ``model``.

    Args:
        compute_dtype: of a mixed precision plan; the floating-point weights are then stored in
            float32. None keeps every weight's own dtype.

    Raises:
        PlanError: when the model lacks a tensor or has another shape, or rank 0's is on ``meta``.
    """
    own_parameters = dict(model.named_parameters(remove_duplicate=False))
    own_buffers = dict(model.named_buffers(remove_duplicate=False))
    parameters, layouts = {}, {}
    for name, stored in emitted.parameters.items():
        source = _find(own_parameters, name, stored)
        mixed = compute_dtype is not None and source.is_floating_point()
        whole = _from_rank_0(source, name, mesh, MASTER_DTYPE if mixed else source.dtype)
        layouts[name] = ParameterLayout(shape=stored.meta.shape, tp_dim=_tp_dim(stored, mesh))
        parameters[name] = nn.Parameter(
            _piece(whole, layouts[name], mesh), requires_grad=source.requires_grad
        )
    buffers = {}
    for name, stored in emitted.buffers.items():
        source = _find(own_buffers, name, stored)
        mixed = compute_dtype is not None and source.is_floating_point()
        dtype = getattr(torch, stored.meta.dtype) if mixed else source.dtype
        layouts[name] = ParameterLayout(shape=stored.meta.shape, tp_dim=_tp_dim(stored, mesh))
        buffers[name] = _piece(_from_rank_0(source, name, mesh, dtype), layouts[name], mesh)
    return Weights(parameters=parameters, buffers=buffers, layouts=layouts)


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
        local = whole.chunk(mesh.tp, layout.tp_dim)[mesh.tp_rank].contiguous()
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
