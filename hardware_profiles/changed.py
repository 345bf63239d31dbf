"""Specs with one value changed, named as in profile files (``protocols.ll.launch_s``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hardware_profiles.spec import DeviceSpec, LinkSpec


def with_constant(link: LinkSpec, name: str, value: float) -> LinkSpec:
    """The link with another value of the constant."""
    match name.split("."):
        case ["protocols", protocol, part]:
            changed = replace(link.protocols[protocol], **{part: value})
            return replace(link, protocols={**link.protocols, protocol: changed})
        case ["group_share", ranks]:
            return replace(link, group_share={**link.group_share, int(ranks): value})
        case ["kind_share", kind]:
            return replace(link, kind_share={**link.kind_share, kind: value})
    return replace(link, **{name: value})


def with_device_values(device: DeviceSpec, values: Mapping[str, float]) -> DeviceSpec:
    """The device with other values; ``peak_flops.float32`` is the peak of that dtype."""
    plain = {name: value for name, value in values.items() if "." not in name}
    peaks = {
        name.removeprefix("peak_flops."): value for name, value in values.items() if "." in name
    }
    return replace(device, **plain, peak_flops={**device.peak_flops, **peaks})
