"""Time of one operator on one device: the roofline, plus the start of a kernel.

``max(flops / achieved flops per second, bytes / achieved bytes per second) + launch``. Achieved
rates are a fraction of the peak that depends on the kind of work only; products that are too small
to fill the device are covered by the launch time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hardware_profiles.spec import DeviceSpec

WorkKind = Literal["matmul", "attention", "memory"]


@dataclass(frozen=True, kw_only=True, slots=True)
class OpWork:
    """What one device does for one operator.

    Attributes:
        flops: floating-point operations, a multiply-add counted as two.
        bytes: device memory read and written.
        dtype: name of the dtype computed in (``bfloat16``).
        kind: ``matmul`` (products and convolutions), ``attention`` (the fused kernel) or
            ``memory`` (everything else, which runs on the vector units).
    """

    flops: float
    bytes: float
    dtype: str
    kind: WorkKind


def op_s(work: OpWork, device: DeviceSpec) -> float:
    """Seconds for one operator; nothing to do takes no time.

    Raises:
        ValueError: flops or bytes are negative.
    """
    if work.flops < 0 or work.bytes < 0:
        raise ValueError(f"work cannot be negative: {work}")
    if work.flops == 0 and work.bytes == 0:
        return 0.0
    compute_s = work.flops / achieved_flops_per_s(work, device)
    return max(compute_s, work.bytes / achieved_bytes_per_s(device)) + device.launch_s


def peak_flops_per_s(dtype: str, device: DeviceSpec) -> float:
    """Peak of the device for a dtype.

    A dtype that the profile does not list runs at the float32 peak, float64 at half of it.
    """
    if dtype in device.peak_flops:
        return device.peak_flops[dtype]
    single = device.peak_flops["float32"]
    return single / 2 if dtype == "float64" else single


def achieved_flops_per_s(work: OpWork, device: DeviceSpec) -> float:
    """Rate at which the device does this work when memory does not limit it."""
    if work.kind == "memory":
        vector_dtype = "float64" if work.dtype == "float64" else "float32"
        return peak_flops_per_s(vector_dtype, device) * device.matmul_efficiency
    efficiency = device.matmul_efficiency
    if work.kind == "attention" and device.attention_efficiency is not None:
        efficiency = device.attention_efficiency
    return peak_flops_per_s(work.dtype, device) * efficiency


def achieved_bytes_per_s(device: DeviceSpec) -> float:
    """Rate at which streaming kernels move device memory."""
    return device.memory_bytes_per_s * device.memory_efficiency
