"""The machine that this process runs on, as the driver and the operating system name it."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from pathlib import Path

import torch

from hardware_profiles.spec import MachineSpec

_MEMORY_TOLERANCE = 0.05
_SECONDS_OF_A_TOOL = 10


def this_machine() -> MachineSpec:
    """What is here, with the threads that this process has."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    memory = torch.cuda.get_device_properties(0).total_memory if gpus else _host_bytes()
    return MachineSpec(
        device=torch.cuda.get_device_name(0) if gpus else _processor(),
        devices=gpus or 1,
        cores=_cores(),
        threads=torch.get_num_threads(),
        memory_bytes=memory,
        torch=str(torch.__version__),
    )


def fingerprint(machine: MachineSpec) -> str:
    """A name for machines that need no profile of their own."""
    parts = (
        machine.device, machine.devices, machine.cores, machine.threads,
        round(machine.memory_bytes / 2**30), machine.torch,
    )  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def differences(measured: MachineSpec, here: MachineSpec) -> str:
    """What of a profile's machine is not as it is here, in words; empty when all is."""
    pairs = [
        (name, getattr(measured, name), getattr(here, name))
        for name in ("device", "devices", "cores", "threads", "torch")
    ]
    found = [f"{name} {then}, here {now}" for name, then, now in pairs if then != now]
    then, now = measured.memory_bytes, here.memory_bytes
    if abs(then - now) > _MEMORY_TOLERANCE * now:
        found.append(f"memory {then / 2**30:.1f} GiB, here {now / 2**30:.1f} GiB")
    return "; ".join(found)


def link_between_gpus() -> str | None:
    """``nvlink`` or ``pcie``, as ``nvidia-smi topo -m`` says of the first GPU; None: not told."""
    try:
        told = subprocess.run(
            ["nvidia-smi", "topo", "-m"],
            capture_output=True, text=True, timeout=_SECONDS_OF_A_TOOL, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return link_in(told.stdout)


def link_in(topology: str) -> str | None:
    """The link from GPU 0 to others in the matrix of ``nvidia-smi topo -m``."""
    for line in topology.splitlines():
        if line.startswith("GPU0"):
            ways = line.split()[1:]
            if any(re.fullmatch(r"NV\d+", way) for way in ways):
                return "nvlink"
            if any(way in ("PIX", "PXB", "PHB", "NODE", "SYS") for way in ways):
                return "pcie"
    return None


def adapters() -> int:
    """Network adapters of the node that collectives of GPUs can use (InfiniBand, RoCE, EFA)."""
    try:
        return len(list(Path("/sys/class/infiniband").iterdir()))
    except OSError:
        return 0


def _processor() -> str:
    try:
        told = Path("/proc/cpuinfo").read_text()
    except OSError:
        told = ""
    found = re.search(r"^model name\s*:\s*(.+)$", told, re.MULTILINE)
    return found[1].strip() if found else os.uname().machine


def _cores() -> int:
    """Cores that this process may use, a container's quota included."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = _control_group("cpu.max").split()
    if len(quota) == 2 and quota[0].isdecimal():
        return max(1, min(allowed or 1, int(quota[0]) // int(quota[1])))
    return allowed or 1


def _host_bytes() -> int:
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _control_group("memory.max").strip()
    return min(installed, int(limit)) if limit.isdecimal() else installed


def _control_group(name: str) -> str:
    try:
        return Path("/sys/fs/cgroup", name).read_text()
    except OSError:
        return ""
