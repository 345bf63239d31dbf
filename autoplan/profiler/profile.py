"""Puts what was measured into the profile of a like machine, whose other values stay as they are.

Values of the base keep their provenance, and their source then names the base. What could not be
measured is never filled in from elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from autoplan.profiler.fit_device import fit_device
from autoplan.profiler.fit_host import fit_host
from autoplan.profiler.fit_links import fit_links
from autoplan.profiler.fitting import Errors, Fit, joined
from autoplan.profiler.machine import fingerprint
from autoplan.profiler.probes import Idle, Measurements, Refused
from autoplan.profiler.schedule import Setting
from hardware_profiles.changed import with_device_values
from hardware_profiles.load import digest
from hardware_profiles.schema import MachineFacts, ProfileFacts
from hardware_profiles.spec import ClusterSpec, MachineSpec

_WHOLE = ("workspace_bytes", "memory_bytes", "gpus_per_node", "nics_per_node")
_ALONE = Refused(
    name="messages between GPUs",
    reason="one rank alone; run torchrun --nproc-per-node N --no-python autoplan profile",
)
_LONGEST_SOURCE = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Profiled:
    """A measured profile and how it came about.

    Attributes:
        errors: of the fits, over what they were fitted to.
        refused: what has no number, and why.
        idle: the least fraction of its time that a process was let run; 1 on an idle machine.
    """

    facts: ProfileFacts
    machine: MachineSpec
    base: str
    measured: int
    errors: tuple[Errors, ...]
    refused: tuple[Refused, ...]
    idle: float
    interrupted: bool


def profiled(
    found: Measurements,
    setting: Setting,
    machine: MachineSpec,
    base: ProfileFacts,
    cluster: ClusterSpec,
    today: date,
) -> Profiled:
    """The profile that measurements make of a base.

    Args:
        base, cluster: the profile of a like machine, as facts and as the cost models read it.

    Raises:
        ValueError: nothing was measured that a profile holds.
    """
    device = fit_device(found, cluster.device, is_gpu=setting.is_gpu)
    links = fit_links(found, _with_device(cluster, device), is_gpu=setting.is_gpu)
    fit = joined(_detected(setting, machine), device, fit_host(found), links)
    if not device.values and not links.values:
        raise ValueError("nothing was measured")
    how = f"measured {today.isoformat()}, torch {machine.torch}, {setting.world} ranks: "
    facts = _with_values(base, fit, how)
    facts = facts.model_copy(update=_naming(machine, setting, today))
    facts = facts.model_copy(update={"machine": _machine(machine, today, facts)})
    idle = [row.value for row in found.measured if isinstance(row.probe, Idle)]
    return Profiled(
        facts=facts,
        machine=machine,
        base=base.name,
        measured=len(found.measured),
        errors=fit.errors,
        refused=(*found.refused, *fit.refused),
        idle=min(idle, default=1.0),
        interrupted=found.interrupted,
    )


def _detected(setting: Setting, machine: MachineSpec) -> Fit:
    """What the system tells: how many devices, and the memory of each."""
    if setting.is_gpu:
        values = {"device.memory_bytes": machine.memory_bytes, "gpus_per_node": machine.devices}
        if setting.adapters:
            values["nics_per_node"] = setting.adapters
        return Fit(
            values=values,
            sources=dict.fromkeys(values, "as the driver says"),
            refused=(_ALONE,) if setting.world == 1 else (),
        )
    ranks = setting.per_node
    return Fit(
        values={"device.memory_bytes": machine.memory_bytes // ranks, "gpus_per_node": ranks},
        sources={
            "device.memory_bytes": f"1/{ranks} of {machine.memory_bytes} bytes of the machine",
            "gpus_per_node": "processes that were measured at once",
        },
    )


def _with_device(cluster: ClusterSpec, fit: Fit) -> ClusterSpec:
    shares = {
        int(name.removeprefix("busy_share.")): value
        for name, value in fit.values.items()
        if name.startswith("busy_share.")
    }
    of_device = {
        name.removeprefix("device."): value
        for name, value in fit.values.items()
        if name.startswith("device.")
    }
    device = with_device_values(cluster.device, of_device)
    return replace(cluster, device=device, busy_share=shares)


def _with_values(base: ProfileFacts, fit: Fit, how: str) -> ProfileFacts:
    tree = base.model_dump(exclude_none=True, exclude={"machine"})
    _name_base(tree, base.name)
    for name, value in fit.values.items():
        *path, leaf = name.split(".")
        part = tree
        for step in path:
            part = part.setdefault(step, {})
        part[leaf] = {
            "value": round(value) if leaf in _WHOLE else float(f"{value:.4g}"),
            "provenance": "measured",
            "source": (how + fit.sources[name])[:_LONGEST_SOURCE],
        }
    return ProfileFacts.model_validate(tree)


def _name_base(part: dict[str, Any], name: str) -> None:
    for value in part.values():
        if isinstance(value, dict) and "provenance" in value:
            value["source"] = f"{name}: {value['source']}"[:_LONGEST_SOURCE]
        elif isinstance(value, dict):
            _name_base(value, name)


def _naming(machine: MachineSpec, setting: Setting, today: date) -> Mapping[str, str]:
    what = f"{setting.per_node} processes on {machine.cores} cores of {machine.device}"
    if setting.is_gpu:
        what = f"{machine.devices} x {machine.device}"
    return {
        "name": f"measured-{fingerprint(machine)}",
        "description": f"{what}, measured {today.isoformat()}",
    }


def _machine(machine: MachineSpec, today: date, facts: ProfileFacts) -> MachineFacts:
    return MachineFacts(
        device=machine.device,
        devices=machine.devices,
        cores=machine.cores,
        threads=machine.threads,
        memory_bytes=machine.memory_bytes,
        torch=machine.torch,
        measured_on=today.isoformat(),
        digest=digest(facts),
    )
