"""Under ``torchrun``: the process group, the cluster we run on, and one plan for all ranks.

Rank 0 plans and broadcasts the plan as the text of a plan file, so that no rank searches apart and
finds another optimum. (``runtime.parallelize`` compares a hash of the plan over all ranks.)
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import torch
import torch.distributed as dist

from autoplan import errors, letters, plan_io
from autoplan.job import Job
from autoplan.plan import Plan
from autoplan.profiler.cache import kept
from autoplan.profiler.machine import differences, this_machine
from hardware_profiles.load import ProfileFault, load, names
from hardware_profiles.spec import ClusterSpec


def start_process_group() -> None:
    """Joins the process group that ``torchrun`` describes, unless the program has done so.

    NCCL and the rank's own GPU when there are GPUs, gloo otherwise. A process that ``torchrun``
    did not start needs no group.
    """
    if dist.is_initialized() or "RANK" not in os.environ:
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("nccl")
    else:
        dist.init_process_group("gloo")


def local_shape() -> tuple[int, int]:
    """Nodes, and ranks on each node."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    local = int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))
    return (world // local, local) if world % local == 0 else (1, world)


def local_cluster(nodes: int, ranks_per_node: int) -> str:
    """The profile that ``autoplan profile`` made of this machine, else the shipped one.

    Raises:
        PlanError: GPUs that no profile describes.
    """
    measured = kept(this_machine(), nodes, ranks_per_node)
    return str(measured) if measured else shipped_cluster()


def foreign(cluster: ClusterSpec) -> str:
    """What of the machine that a profile was measured on is not as here; empty where all is."""
    return differences(cluster.machine, this_machine()) if cluster.machine else ""


def shipped_cluster() -> str:
    """Name of the profile that comes with autoplan for the devices that this process runs on.

    Raises:
        PlanError: GPUs that no profile describes.
    """
    if not torch.cuda.is_available():
        return "cpu-gloo"
    device = torch.cuda.get_device_name()
    memory_bytes = torch.cuda.get_device_properties(0).total_memory
    for name in names():
        spec = load(name).device
        if matches(spec.name, spec.memory_bytes, device, memory_bytes):
            return name
    raise errors.PlanError(
        f"no profile describes {device}; pass cluster= one of {', '.join(names())} or a .toml file"
    )


def runs_on_host(job: Job) -> bool:
    """Whether a job's ranks are processes on CPUs.

    A cluster that this machine has no profile of may be one of GPUs.
    """
    if dist.is_initialized() and dist.get_backend() == "nccl":
        return False
    try:
        return load(job.cluster).runs_on_host
    except ProfileFault:
        return False


def matches(profile: str, profile_bytes: int, device: str, device_bytes: int) -> bool:
    """Whether a profile's device is the one that the driver reports.

    Compares the model number (``H100``), the variants that change the links, and the memory size.
    """
    wanted, found = _words(profile), _words(device)
    model = next((word for word in wanted if any(map(str.isdigit, word))), None)
    same_links = all((variant in wanted) == (variant in found) for variant in ("pcie", "nvl"))
    return model in found and same_links and abs(profile_bytes - device_bytes) < device_bytes / 10


def agree(make: Callable[[], Plan]) -> Plan:
    """Rank 0's plan on every rank.

    Args:
        make: makes or reads the plan; called on rank 0 alone.

    Raises:
        AutoplanError: whatever ``make`` raised, on every rank.
    """
    if not dist.is_initialized():
        return make()
    letter = _broadcast(_attempt(make) if dist.get_rank() == 0 else "")
    return plan_io.from_json(letters.opened(letter))


def _attempt(make: Callable[[], Plan]) -> str:
    try:
        return letters.letter_of(lambda: plan_io.to_json(make()))
    except Exception as error:
        message = f"planning failed on rank 0 with {type(error).__name__}: {error}"
        _broadcast(letters.refusal(errors.PlanError(message)))
        raise


def _broadcast(text: str) -> str:
    """Rank 0's text on every rank, as bytes in a tensor, since no message may be a pickle."""
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    content = torch.tensor(list(text.encode()), dtype=torch.uint8, device=device)
    size = torch.tensor(len(content), device=device)
    dist.broadcast(size, src=0)
    if dist.get_rank() != 0:
        content = content.new_empty(int(size))
    dist.broadcast(content, src=0)
    return bytes(content.tolist()).decode()


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", text.lower()) if word]
