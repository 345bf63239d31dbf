"""Where this process stands in the mesh of the plan.

``tp`` ranks are neighbours (innermost), so that the messages of every operator stay within a node;
the plan says whether ``pp`` or ``dp`` is the outermost axis. A job of one process needs no process
group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from autoplan.errors import PlanError
from autoplan.plan import MeshPlan
from autoplan.runtime.torch_private import all_reduce, flatten_mesh

_REPLICATED = ("dp_replicate", "dp_shard")


@dataclass(frozen=True, kw_only=True, slots=True)
class RankMesh:
    """Sizes of the mesh axes and the coordinates of this rank.

    Attributes:
        device_mesh: the mesh of the axes; None in a process without a process group.
        replicas: groups of data-parallel ranks that each hold a whole copy of what ZeRO splits.
    """

    dp: int
    tp: int
    dp_rank: int
    tp_rank: int
    device: torch.device
    device_mesh: DeviceMesh | None
    pp: int = 1
    pp_rank: int = 0
    outermost: Literal["pp", "dp"] = "pp"
    replicas: int = 1

    @property
    def shards(self) -> int:
        """Data-parallel ranks, neighbours on ``dp``, that share what ZeRO splits."""
        return self.dp // self.replicas

    @property
    def shard_rank(self) -> int:
        """This rank's place among those that share with it."""
        return self.dp_rank % self.shards

    @property
    def replica(self) -> int:
        """Which of the groups that share this rank is in."""
        return self.dp_rank // self.shards

    @property
    def world_size(self) -> int:
        return self.pp * self.dp * self.tp

    @property
    def rank(self) -> int:
        return self.rank_at(self.pp_rank)

    def rank_at(self, pp_rank: int) -> int:
        """The rank of the world that differs from this one in ``pp`` alone."""
        if self.outermost == "pp":
            return (pp_rank * self.dp + self.dp_rank) * self.tp + self.tp_rank
        return (self.dp_rank * self.pp + pp_rank) * self.tp + self.tp_rank

    def axis(self, name: str) -> DeviceMesh:
        """The one-dimensional mesh of this rank along ``name``; there must be a process group."""
        assert self.device_mesh is not None
        return self.device_mesh[name]

    def sharing(self) -> DeviceMesh:
        """The mesh over which FSDP splits: ``dp``, or its replicas and the ranks of each."""
        assert self.device_mesh is not None
        return self.device_mesh[_REPLICATED] if self.replicas > 1 else self.device_mesh["dp"]

    def group(self, name: str) -> dist.ProcessGroup | None:
        """The process group along ``name``; None without a process group."""
        return None if self.device_mesh is None else self.device_mesh.get_group(name)

    def sum_over_dp(self, value: torch.Tensor) -> torch.Tensor:
        """The sum of ``value`` over the data-parallel ranks, computed in place."""
        if self.dp > 1:
            dist.all_reduce(value, group=self.group("dp"))
        return value

    def begin_sum_over_dp(self, value: torch.Tensor) -> torch.Tensor:
        """The sum of ``value`` over the data-parallel ranks, which is under way until ``arrived``
        is asked for it."""
        group = self.group("dp")
        if self.dp == 1 or group is None:
            return value
        return all_reduce(value, "sum", group.group_name)

    def sum_over_samples(self, value: torch.Tensor) -> torch.Tensor:
        """The sum of ``value`` over ``dp`` and ``pp``, computed in place."""
        return self.sum_over_pp(self.sum_over_dp(value))

    def sum_over_pp(self, value: torch.Tensor) -> torch.Tensor:
        """The sum of ``value`` over the ranks of the pipeline, computed in place."""
        if self.pp > 1:
            dist.all_reduce(value, group=self.group("pp"))
        return value

    def sum_over_world(self, value: torch.Tensor) -> torch.Tensor:
        """The sum of ``value`` over all ranks, computed in place."""
        if self.world_size > 1:
            dist.all_reduce(value)
        return value

    def barrier(self) -> None:
        if self.world_size > 1:
            dist.barrier()


def build_mesh(mesh: MeshPlan, replicas: int = 1, device: torch.device | None = None) -> RankMesh:
    """The mesh of the plan over the running process group.

    Args:
        replicas: of the plan.
        device: where this rank computes; by default its CUDA device under a CUDA backend, else the
            CPU.

    Raises:
        PlanError: when the running world size is not the plan's, or an axis is not supported.
    """
    for axis in ("cp", "ep"):
        if getattr(mesh, axis) != 1:
            raise PlanError(
                f"the plan has {axis} = {getattr(mesh, axis)}; this version runs pp x dp x tp "
                f"only: plan with {axis} = 1"
            )
    running = dist.get_world_size() if dist.is_initialized() else 1
    if running != mesh.world_size:
        raise PlanError(
            f"the plan is for {mesh.world_size} ranks ({_words(mesh)}) but {running} run: start "
            f"{mesh.world_size} processes with torchrun, or plan for {running}"
        )
    device = device or _default_device()
    if not dist.is_initialized():
        return RankMesh(dp=1, tp=1, dp_rank=0, tp_rank=0, device=device, device_mesh=None)
    device_mesh = _device_mesh(mesh, replicas, device)
    return RankMesh(
        pp=mesh.pp,
        dp=mesh.dp,
        tp=mesh.tp,
        pp_rank=device_mesh.get_local_rank("pp"),
        dp_rank=_dp_rank(device_mesh, mesh.dp // replicas),
        tp_rank=device_mesh.get_local_rank("tp"),
        device=device,
        device_mesh=device_mesh,
        outermost=mesh.outermost,
        replicas=replicas,
    )


def _device_mesh(mesh: MeshPlan, replicas: int, device: torch.device) -> DeviceMesh:
    """The axes, outermost first; ``dp`` of several replicas is a view of two axes."""
    sizes = (
        {"pp": mesh.pp, "dp": mesh.dp} if mesh.outermost == "pp" else {"dp": mesh.dp, "pp": mesh.pp}
    )
    sizes["tp"] = mesh.tp
    if replicas == 1:
        return init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    split = dict(zip(_REPLICATED, (replicas, mesh.dp // replicas), strict=True))
    found: dict[str, int] = {}
    for axis, size in sizes.items():
        found |= split if axis == "dp" else {axis: size}
    whole = init_device_mesh(device.type, tuple(found.values()), mesh_dim_names=tuple(found))
    flatten_mesh(whole[_REPLICATED], "dp")
    return whole


def _dp_rank(device_mesh: DeviceMesh, shards: int) -> int:
    """This rank's place on ``dp``, told without slicing a flattened axis, which torch warns of."""
    if "dp" in (device_mesh.mesh_dim_names or ()):
        return device_mesh.get_local_rank("dp")
    replica, shard = (device_mesh.get_local_rank(axis) for axis in _REPLICATED)
    return replica * shards + shard


def _words(mesh: MeshPlan) -> str:
    pipeline = f"pp {mesh.pp} x " if mesh.pp > 1 else ""
    return f"{pipeline}dp {mesh.dp} x tp {mesh.tp}"


def _default_device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if dist.is_initialized() and "nccl" not in dist.get_backend():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
