"""Time of one kernel on one device.

Products and attention follow their shapes (``gemm``, ``attention``). Everything else streams device
memory: bytes over the achieved rate. Each kernel costs a launch, which is its start and the ramp
until memory is saturated: what small kernels fall short of the full rate by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cost_models.attention import attention_s
from cost_models.gemm import gemm_s
from cost_models.peaks import peak_flops_per_s, streaming_bytes_per_s
from cost_models.work import FlashAttention, Gemm, Streaming, Work
from hardware_profiles.spec import DeviceSpec

WorkKind = Literal["matmul", "attention", "memory"]
BACKWARD_ATTENTION_KERNELS = 3


def kernel_s(work: Work, device: DeviceSpec) -> float:
    """Seconds of the kernels from the start of the first to the end of the last.

    Raises:
        ValueError: a size is negative, or no products exist in the dtype.
    """
    match work:
        case Gemm():
            _check(work, work.batch, work.m, work.n, work.k)
            if not work.flops:
                return 0.0
            return gemm_s(work, device) + device.launch_s
        case FlashAttention():
            _check(work, work.batch, work.heads, work.queries, work.keys)
            if not work.flops:
                return 0.0
            kernels = BACKWARD_ATTENTION_KERNELS if work.backward else 1
            return attention_s(work, device) + kernels * device.launch_s
        case Streaming():
            _check(work, work.bytes, work.kernels)
            return work.bytes / streaming_bytes_per_s(device) + work.kernels * device.launch_s


def _check(work: Work, *sizes: float) -> None:
    if min(sizes) < 0:
        raise ValueError(f"work cannot be negative: {work}")


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
    """Seconds for one operator of unknown shape; nothing to do takes no time.

    Raises:
        ValueError: flops or bytes are negative.
    """
    if work.flops < 0 or work.bytes < 0:
        raise ValueError(f"work cannot be negative: {work}")
    if work.flops == 0 and work.bytes == 0:
        return 0.0
    compute_s = work.flops / achieved_flops_per_s(work, device)
    return max(compute_s, work.bytes / achieved_bytes_per_s(device)) + device.launch_s


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
    return streaming_bytes_per_s(device)
