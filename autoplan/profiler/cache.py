"""Measured profiles, kept by fingerprint of the machine where caches are (``XDG_CACHE_HOME``)."""

from __future__ import annotations

import os
from pathlib import Path

from autoplan.profiler.machine import fingerprint
from hardware_profiles.load import ProfileFault, load
from hardware_profiles.schema import ProfileFacts
from hardware_profiles.spec import ClusterSpec, MachineSpec
from hardware_profiles.write import save


def path_of(machine: MachineSpec) -> Path:
    """Where the machine's profile is kept, if there is one."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches, "autoplan", "profiles", f"{fingerprint(machine)}.toml")


def keep(facts: ProfileFacts, machine: MachineSpec) -> Path:
    """Keeps a profile as the machine's.

    Raises:
        OSError: it cannot be written.
    """
    path = path_of(machine)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(facts, path)
    return path


def kept(machine: MachineSpec, nodes: int, ranks_per_node: int) -> Path | None:
    """The profile that is kept for the machine, if it describes so many nodes and ranks of each.

    A file that is no profile any more counts as none.
    """
    path = path_of(machine)
    try:
        cluster: ClusterSpec = load(path)
    except ProfileFault:
        return None
    fits = nodes <= cluster.max_nodes and ranks_per_node <= cluster.gpus_per_node
    return path if fits else None
