"""What a row reports of memory: how many bytes, and which of a device's bytes those are.

Sources give what nvidia-smi shows (reserved memory and the device's context), PyTorch's peak of
reserved memory, its peak of allocated or active memory (without what the allocator holds beyond
tensors), or sums of categories.
"""

from __future__ import annotations

import re
from typing import Literal

from autoplan.validation.published.rows import MeasuredRow
from cost_models.memory import MemoryBreakdown
from hardware_profiles.spec import DeviceSpec

Scope = Literal[
    "device", "reserved", "allocated", "states and activations", "states", "activations"
]

_GIB = 2**30
_GB = 10**9
_TOLERANCE = 0.005
_STATES = ("parameters", "master_weights", "gradients", "optimizer_state")
_CATEGORIES: dict[Scope, tuple[str, ...]] = {
    "states": _STATES,
    "activations": ("activations",),
    "states and activations": (*_STATES, "activations"),
}


def reported_bytes(row: MeasuredRow) -> int | None:
    """Peak memory that a row reports; None where it reports none.

    The column is in GiB where the kind of memory says so, in 1e9 bytes otherwise; where the kind
    repeats the figure in GiB, the two are told apart by it.
    """
    if row.peak_mem_gb is None:
        return None
    kind = row.mem_kind
    repeated = re.search(r"([\d.]+\d)\s*GiB", kind)
    if repeated and abs(float(repeated[1]) * _GIB / _GB / row.peak_mem_gb - 1) < _TOLERANCE:
        return round(float(repeated[1]) * _GIB)
    unit = _GIB if re.search(r"GiB|MiB", kind) else _GB
    return round(row.peak_mem_gb * unit)


def scope_of(row: MeasuredRow) -> Scope:
    """Which bytes the row's figure counts."""
    kind = row.mem_kind.lower()
    states = re.search(r"model.?states?|optimizer", kind) is not None
    activations = "activation" in kind
    if "peak activation" in kind:
        return "allocated"
    if states:
        return "states and activations" if activations else "states"
    if activations:
        return "activations"
    if re.search(r"smi|device|context", kind):
        return "device"
    return "reserved" if "reserved" in kind else "allocated"


def compared_bytes(memory: MemoryBreakdown, scope: Scope, device: DeviceSpec) -> int:
    """The part of a prediction that a reported figure of this scope counts."""
    if scope == "device":
        return memory.total + device.workspace_bytes
    if scope == "reserved":
        return memory.total
    if scope == "allocated":
        return memory.total - memory.workspace
    return sum(getattr(memory, category) for category in _CATEGORIES[scope])


def reported_out_of_memory(row: MeasuredRow, device_bytes: int) -> bool | None:
    """Whether the run did not fit; None where the row does not tell."""
    reported = reported_bytes(row)
    if row.oom or (reported or 0) > device_bytes:
        return True
    return False if row.step_time_s is not None or reported is not None else None
