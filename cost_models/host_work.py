"""What the host takes in a program of many ranks, where it is the device that computes.

An accelerator runs behind its host, which hides what starts its work. On a CPU every call in Python
around a message shows: FSDP2's hooks of a unit and its copies to and from the buffers that are sent
(Zhao et al. 2023, section 4.2), the autograd function of a message over ``tp``, and the reading of
a parameter of which the rank holds a piece. So do the calls of autograd, one for each few weights,
by which PyTorch's pipelines take gradients of weights apart from a backward (zero bubble; Qi et al.
2023). Profiles that were measured on CPUs state the seconds; with all others they are none.
"""

from __future__ import annotations

from hardware_profiles.spec import DeviceSpec


def gather_host_s(nbytes: float, device: DeviceSpec) -> float:
    """Of gathering the weights of one unit of so many bytes, beside the message."""
    return _around_s(nbytes, device.gather_host_s, device.gather_copy_bytes_per_s)


def reduce_host_s(nbytes: float, device: DeviceSpec) -> float:
    """Of scattering the gradients of one unit of so many bytes, beside the message."""
    return _around_s(nbytes, device.reduce_host_s, device.reduce_copy_bytes_per_s)


def message_host_s(device: DeviceSpec) -> float:
    """Of one message in the program, beside the message."""
    return device.message_host_s or 0.0


def piece_read_s(device: DeviceSpec) -> float:
    """Of one use of a piece of a parameter, forward and backward."""
    return device.piece_read_s or 0.0


def split_gradient_s(device: DeviceSpec) -> float:
    """Of one parameter's gradient of one microbatch that is taken apart from the backward."""
    return device.split_gradient_s or 0.0


def _around_s(nbytes: float, each_s: float | None, bytes_per_s: float | None) -> float:
    return (each_s or 0.0) + (nbytes / bytes_per_s if bytes_per_s else 0.0)
