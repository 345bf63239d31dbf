"""Rates that a device states: peak by dtype, achieved rate of memory, width of elements."""

from __future__ import annotations

from hardware_profiles.spec import DeviceSpec

_ELEMENT_BYTES = {
    "float64": 8,
    "float32": 4,
    "tf32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}


def element_bytes(dtype: str) -> int:
    """Bytes of one element in memory.

    ``tf32`` are float32 tensors that tensor cores multiply with ten bits of mantissa.

    Raises:
        ValueError: no device multiplies this dtype.
    """
    if dtype not in _ELEMENT_BYTES:
        raise ValueError(f"no products in {dtype!r}; known: {', '.join(_ELEMENT_BYTES)}")
    return _ELEMENT_BYTES[dtype]


def peak_flops_per_s(dtype: str, device: DeviceSpec) -> float:
    """Peak of the device for a dtype.

    A dtype that the profile does not list runs at the float32 peak, float64 at half of it.
    """
    if dtype in device.peak_flops:
        return device.peak_flops[dtype]
    single = device.peak_flops["float32"]
    return single / 2 if dtype == "float64" else single


def streaming_bytes_per_s(device: DeviceSpec) -> float:
    """Rate at which large kernels move device memory."""
    return device.memory_bytes_per_s * device.memory_efficiency


def optimizer_bytes_per_s(device: DeviceSpec) -> float:
    """Rate at which an optimizer's step moves what it reads and writes."""
    if device.optimizer_efficiency is None:
        return streaming_bytes_per_s(device)
    return device.memory_bytes_per_s * device.optimizer_efficiency
