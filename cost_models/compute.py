"""Time of one kernel on one device.

Products and attention follow their shapes (``gemm``, ``attention``); products of unknown shape run
at the achieved rate of large ones. Everything else streams device memory: bytes over the achieved
rate. Each kernel costs a launch, which is its start and the ramp until memory is saturated: what
small kernels fall short of the full rate by.
"""

from __future__ import annotations

from cost_models.attention import attention_s
from cost_models.gemm import gemm_s, matmul_flops_per_s
from cost_models.peaks import streaming_bytes_per_s
from cost_models.work import Contraction, FlashAttention, Gemm, Streaming, Work
from hardware_profiles.spec import DeviceSpec

BACKWARD_ATTENTION_KERNELS = 3


def kernel_s(work: Work, device: DeviceSpec) -> float:
    """Seconds of the kernels from the start of the first to the end of the last.

    Raises:
        ValueError: a size is negative, or no products exist in the dtype.
    """
    match work:
        case Gemm():
            _check(work, work.batch, work.m, work.n, work.k)
            return gemm_s(work, device) + device.launch_s if work.flops else 0.0
        case FlashAttention():
            _check(work, work.batch, work.heads, work.queries, work.keys)
            kernels = BACKWARD_ATTENTION_KERNELS if work.backward else 1
            return attention_s(work, device) + kernels * device.launch_s if work.flops else 0.0
        case Contraction():
            _check(work, work.flops, work.bytes)
            compute_s = work.flops / matmul_flops_per_s(work.dtype, device)
            return max(compute_s, work.bytes / streaming_bytes_per_s(device)) + device.launch_s
        case Streaming():
            _check(work, work.bytes, work.kernels)
            return work.bytes / streaming_bytes_per_s(device) + work.kernels * device.launch_s


def _check(work: Work, *sizes: float) -> None:
    if min(sizes) < 0:
        raise ValueError(f"work cannot be negative: {work}")
