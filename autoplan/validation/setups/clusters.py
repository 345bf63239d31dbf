"""The hardware profile of a row: by the device it names, its memory, and the network of its nodes.

Where no profile has the row's network, the nearest one is taken and said; a device without a
profile is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from autoplan.validation.published.rows import IncompleteRowError, MeasuredRow
from hardware_profiles.load import load, names
from hardware_profiles.spec import ClusterSpec

_MEMORY_TOLERANCE = 0.07
_RATE_TOLERANCE = 0.3
_GIGABIT = 1e9 / 8
_TERABIT = re.compile(r"(\d+(?:\.\d+)?)\s*Tb", re.IGNORECASE)
_FAMILY_END = re.compile(r"-(?:SXM|PCIE|GCD|\d+GB)")
# Devices that share a name with one that has a profile, and little else.
_VARIANT = re.compile(r"NVL\b|LAPTOP|MOBILE|MAX-?Q|\d{4}[ -]?(?:TI|SUPER|D)\b")
_UNSTATED_GPU = "dgx-a100-80g"
_RATE = re.compile(
    r"(?:(\d+)\s*[x×]\s*)?(?:\w+[ -])?(?:(?:hdr|ndr|edr|xdr)\s?(\d{2,4})|(\d{2,5})\s*g(?:b|\b))",
    re.I,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Profile:
    """What a cluster's names say of its device."""

    cluster: ClusterSpec
    family: str
    memory_gb: float
    pcie: bool

    @property
    def node_rate(self) -> float:
        cluster = self.cluster
        adapters = cluster.nics_per_node or cluster.gpus_per_node
        return adapters * cluster.inter_node.bytes_per_s


@cache
def _profiles() -> tuple[_Profile, ...]:
    """All clusters of accelerators, NVIDIA's own systems first."""
    found = []
    for name in sorted(names(), key=lambda name: (not name.startswith("dgx"), name)):
        cluster = load(name)
        memory = re.search(r"(\d+)GB", cluster.device.name)
        if cluster.backend == "nccl" and memory:
            found.append(
                _Profile(
                    cluster=cluster,
                    family=_FAMILY_END.split(cluster.device.name.upper())[0],
                    memory_gb=float(memory[1]),
                    pcie="PCIE" in cluster.device.name.upper(),
                )
            )
    return tuple(found)


def cluster_of(row: MeasuredRow, assumed: list[str]) -> ClusterSpec:
    """The profile that a row ran on.

    Raises:
        IncompleteRowError: the device is not stated, or no profile has it.
    """
    family = _family(row.gpu)
    if family is None and not re.search(r"[A-Za-z]+\d", row.gpu.split(",")[0]):
        family = _family(f"{row.verified} {row.notes}")
        if family is None:
            return _unstated(row, assumed)
        assumed.append(f"gpu: {family}, as the source's notes suggest")
    fitting = [each for each in _profiles() if each.family == family]
    if not fitting or _VARIANT.search(row.gpu.upper()):
        raise IncompleteRowError(f"gpu {row.gpu}: no hardware profile has it")
    named = [each for each in fitting if _named(each.cluster.name, row)]
    if named:
        return named[0].cluster
    fitting = _with_form(row, fitting)
    return _by_network(row, _with_memory(row, fitting, assumed), assumed).cluster


def _unstated(row: MeasuredRow, assumed: list[str]) -> ClusterSpec:
    """Memory does not depend on the device; time does."""
    if row.step_time_s is not None:
        stated = f"{row.gpu} is no known device" if row.gpu else "is not stated"
        raise IncompleteRowError(f"gpu {stated}")
    assumed.append(f"gpu: not stated; {_UNSTATED_GPU}, of no effect on memory")
    return load(_UNSTATED_GPU)


def _family(text: str) -> str | None:
    """The device family named first."""
    places = []
    for family in {each.family for each in _profiles()}:
        spelled = family.replace("-", "[ _-]?")
        found = re.search(rf"(?<![A-Z0-9])(?:\d+\s*X\s*)?{spelled}(?!\d)", text.upper())
        if found:
            places.append((found.start(), -len(family), family))
    return min(places)[2] if places else None


def _named(name: str, row: MeasuredRow) -> bool:
    """Whether the row names the system itself (``p4d class``)."""
    text = f"{row.gpu} {row.interconnect}".lower()
    return re.search(rf"(?<![a-z0-9-]){re.escape(name)}(?![a-z0-9-])", text) is not None


def _with_form(row: MeasuredRow, fitting: list[_Profile]) -> list[_Profile]:
    pcie = "PCIE" in row.gpu.upper()
    of_form = [each for each in fitting if each.pcie == pcie]
    if pcie and not of_form:
        raise IncompleteRowError(f"gpu {row.gpu}: no hardware profile has it on PCIe")
    return of_form or fitting


def _with_memory(row: MeasuredRow, fitting: list[_Profile], assumed: list[str]) -> list[_Profile]:
    words = row.gpu.upper().replace(fitting[0].family, "")
    stated = re.search(r"(\d+)\s*G(?:I?B)?\b", words)
    memory = row.gpu_mem_gb or (float(stated[1]) if stated else None)
    if memory is None:
        usual = [each for each in fitting if each.cluster.name.startswith("dgx")] or fitting
        memory = max(each.memory_gb for each in usual)
        if len({each.memory_gb for each in fitting}) > 1:
            assumed.append(f"gpu memory: {memory:.0f} GB")
    near = [each for each in fitting if abs(each.memory_gb / memory - 1) <= _MEMORY_TOLERANCE]
    if not near:
        sizes = ", ".join(sorted({f"{each.memory_gb:.0f}" for each in fitting}))
        raise IncompleteRowError(f"gpu {row.gpu} with {memory:.0f} GB: profiles have {sizes} GB")
    return near


def _by_network(row: MeasuredRow, fitting: list[_Profile], assumed: list[str]) -> _Profile:
    nodes = -(-(row.n_gpus or 1) // fitting[0].cluster.gpus_per_node)
    rates = list(_node_rates(row, fitting[0].cluster.gpus_per_node))
    if not rates:
        if nodes > 1 and "dgx" not in f"{row.gpu} {row.interconnect}".lower():
            assumed.append(f"network: not stated; as {fitting[0].cluster.name}")
        return fitting[0]

    def distance(profile: _Profile) -> float:
        return min(abs(math.log(profile.node_rate / rate)) for rate in rates)

    nearest = min(fitting, key=distance)
    if distance(nearest) > _RATE_TOLERANCE and nodes > 1:
        stated = " or ".join(f"{rate / _GIGABIT:.0f}" for rate in rates)
        assumed.append(
            f"network: {stated} Gb/s a node stated; {nearest.cluster.name} has"
            f" {nearest.node_rate / _GIGABIT:.0f}"
        )
    return nearest


def _node_rates(row: MeasuredRow, gpus_per_node: int) -> Iterable[float]:
    """Bytes a second out of a node that the row's words can mean."""
    words = _TERABIT.sub(lambda found: f"{1000 * float(found[1]):.0f} Gb", row.interconnect)
    for part in re.split(r"[;,+]|\band\b", words):
        if re.search(r"nvlink|nvswitch|intra|single node|pcie", part, re.IGNORECASE) and not (
            re.search(r"hdr|ndr|edr|\bib\b|node-node|inter", part, re.IGNORECASE)
        ):
            continue
        for adapters, generation, plain in _RATE.findall(part):
            unit = 8 * _GIGABIT if re.search(r"\d\s*GB/s", part) else _GIGABIT
            rate = float(generation or plain) * unit
            if adapters:
                yield int(adapters) * rate
            elif re.search(r"gpu|adapter|nic\b|device", part, re.IGNORECASE):
                yield gpus_per_node * rate
            elif "node" in part.lower():
                yield rate
            else:
                yield from (rate, gpus_per_node * rate)
