"""Reads a cluster's profile by name or from a file.

A file gives its device and links in tables of its own, or names those that come with the package
(``device = "h100-sxm5-80gb"``): each stands in one file, whatever the number of clusters with it.

The digest covers every figure and the backend, and leaves out names, descriptions and sources: two
profiles with the same digest give the same plans.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hardware_profiles.schema import (
    DeviceFacts,
    Fact,
    LinkFacts,
    MachineFacts,
    ProfileFacts,
    ProtocolFacts,
    T,
    facts_of,
)
from hardware_profiles.spec import (
    ClusterSpec,
    DeviceSpec,
    LinkSpec,
    MachineSpec,
    ProtocolSpec,
)
from hardware_profiles.validation import first_fault, one_line

_DATA = Path(__file__).parent / "data"
_PARTS = {"device": "devices", "intra_node": "links", "inter_node": "links"}
_LARGEST_FILE_BYTES = 256 * 1024


class ProfileFault(ValueError):  # noqa: N818 - callers turn it into autoplan.errors.ProfileError
    """A profile that is unknown, unreadable or malformed; the message is one line for the user."""


def names() -> tuple[str, ...]:
    """Names of the profiles that come with the package, sorted."""
    return _stems(_DATA)


def load(name_or_path: str | Path) -> ClusterSpec:
    """The cluster of a profile that comes with the package, or of a TOML file.

    Anything that ends in ``.toml`` is a path; anything else is a name.

    Raises:
        ProfileFault: no such profile, or the file breaks the rules of ``schema``.
    """
    return _cluster(load_facts(name_or_path))


def load_facts(name_or_path: str | Path) -> ProfileFacts:
    """The facts of a profile, found as ``load`` does.

    Raises:
        ProfileFault: as ``load``.
    """
    text = str(name_or_path)
    if text.endswith(".toml"):
        return parse_facts(_read(Path(text)), where=text)
    if text not in names():
        raise ProfileFault(_unknown(text))
    return parse_facts(_read(_DATA / f"{text}.toml"), where=text)


def parse(text: str, *, where: str) -> ClusterSpec:
    """The cluster described by a profile's text; ``where`` is how errors call it.

    Raises:
        ProfileFault: the text is not TOML, or breaks the rules of ``schema``.
    """
    return _cluster(parse_facts(text, where=where))


def parse_facts(text: str, *, where: str) -> ProfileFacts:
    """The facts of a profile's text.

    Raises:
        ProfileFault: as ``parse``, and for a measured profile whose figures are not those measured.
    """
    label = one_line(where)
    try:
        facts = ProfileFacts.model_validate(_with_parts(tomllib.loads(text), label))
    except ProfileFault:
        raise
    except ValidationError as error:
        raise ProfileFault(f"profile {label}: {first_fault(error)}") from None
    except (ValueError, RecursionError) as error:
        raise ProfileFault(f"profile {label} is not TOML: {one_line(str(error))}") from None
    if facts.machine and facts.machine.digest != digest(facts):
        raise ProfileFault(
            f"profile {label}: machine.digest: the figures are not those that were measured; run "
            "`autoplan profile` again, or take the [machine] table out of a profile edited by hand"
        )
    return facts


def digest(profile: ProfileFacts) -> str:
    """Hash of every figure of a profile."""
    facts = {name: fact.value for name, fact in facts_of(profile)}
    values = {"backend": profile.backend, **facts}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def with_digest(profile: ProfileFacts) -> ProfileFacts:
    """A measured profile that tells its own digest; another one as it is."""
    if profile.machine is None:
        return profile
    machine = profile.machine.model_copy(update={"digest": digest(profile)})
    return profile.model_copy(update={"machine": machine})


def _with_parts(profile: dict[str, Any], label: str) -> dict[str, Any]:
    """The profile with the tables of the devices and links that it names."""
    return profile | {
        field: _part(field, kind, profile[field], label)
        for field, kind in _PARTS.items()
        if isinstance(profile.get(field), str)
    }


def _part(field: str, kind: str, name: str, label: str) -> dict[str, Any]:
    known = _stems(_DATA / kind)
    if name not in known:
        raise ProfileFault(
            f"profile {label}: {field}: no {one_line(name)!r} among the {kind} that come with "
            f"autoplan: {', '.join(known)}; or give a [{field}] table"
        )
    return tomllib.loads(_read(_DATA / kind / f"{name}.toml"))


def _stems(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in folder.glob("*.toml")))


def _read(path: Path) -> str:
    label = one_line(str(path))
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ProfileFault(f"cannot read profile {label}: {reason}; {_known()}") from None
    if len(content) > _LARGEST_FILE_BYTES:
        raise ProfileFault(f"profile {label} is larger than {_LARGEST_FILE_BYTES} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ProfileFault(f"profile {label} is not UTF-8 text: {error}") from None


def _known() -> str:
    return f"known profiles: {', '.join(names())}; or give the path of a .toml file"


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, names(), n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"unknown profile {one_line(name)!r}; {hint}{_known()}"


def _cluster(profile: ProfileFacts) -> ClusterSpec:
    return ClusterSpec(
        name=profile.name,
        description=profile.description,
        device=_device(profile.device),
        gpus_per_node=profile.gpus_per_node.value,
        max_nodes=profile.max_nodes.value,
        intra_node=_link(profile.intra_node),
        inter_node=_link(profile.inter_node),
        backend=profile.backend,
        overlap_efficiency=profile.overlap_efficiency.value,
        provenance={name: fact.provenance for name, fact in facts_of(profile)},
        digest=digest(profile),
        scaleup_gpus=_optional(profile.scaleup_gpus),
        nics_per_node=_optional(profile.nics_per_node),
        oversubscription=_optional(profile.oversubscription) or 1.0,
        price_per_gpu_hour_usd=_optional(profile.price_per_gpu_hour_usd),
        step_jitter=_optional(profile.step_jitter),
        busy_share={int(number): fact.value for number, fact in profile.busy_share.items()},
        machine=_machine(profile.machine) if profile.machine else None,
    )


def _machine(facts: MachineFacts) -> MachineSpec:
    return MachineSpec(
        device=facts.device,
        devices=facts.devices,
        cores=facts.cores,
        threads=facts.threads,
        memory_bytes=facts.memory_bytes,
        torch=facts.torch,
    )


def _device(facts: DeviceFacts) -> DeviceSpec:
    return DeviceSpec(
        name=facts.name,
        peak_flops={dtype: fact.value for dtype, fact in facts.peak_flops.items()},
        matmul_efficiency=facts.matmul_efficiency.value,
        attention_forward_efficiency=_optional(facts.attention_forward_efficiency),
        attention_backward_efficiency=_optional(facts.attention_backward_efficiency),
        attention_generation=_optional(facts.attention_generation) or 2,
        float8_matmul_efficiency=_optional(facts.float8_matmul_efficiency),
        sm_count=_optional(facts.sm_count),
        sm_load_bytes_per_s=_optional(facts.sm_load_bytes_per_s),
        memory_bytes=facts.memory_bytes.value,
        memory_bytes_per_s=facts.memory_bytes_per_s.value,
        memory_efficiency=facts.memory_efficiency.value,
        optimizer_efficiency=_optional(facts.optimizer_efficiency),
        optimizer_tensor_s=_optional(facts.optimizer_tensor_s),
        optimizer_piece_s=_optional(facts.optimizer_piece_s),
        operand_bytes_per_s=_optional(facts.operand_bytes_per_s),
        piece_read_s=_optional(facts.piece_read_s),
        split_gradient_s=_optional(facts.split_gradient_s),
        message_host_s=_optional(facts.message_host_s),
        gather_host_s=_optional(facts.gather_host_s),
        gather_copy_bytes_per_s=_optional(facts.gather_copy_bytes_per_s),
        reduce_host_s=_optional(facts.reduce_host_s),
        reduce_copy_bytes_per_s=_optional(facts.reduce_copy_bytes_per_s),
        launch_s=facts.launch_s.value,
        workspace_bytes=facts.workspace_bytes.value,
        host_link_bytes_per_s=_optional(facts.host_link_bytes_per_s),
    )


def _link(facts: LinkFacts) -> LinkSpec:
    return LinkSpec(
        name=facts.name,
        bytes_per_s=facts.bytes_per_s.value,
        efficiency=facts.efficiency.value,
        latency_s=facts.latency_s.value,
        in_network_reduction=facts.in_network_efficiency is not None,
        launch_s=facts.launch_s.value,
        p2p_efficiency=_optional(facts.p2p_efficiency),
        in_network_efficiency=_optional(facts.in_network_efficiency),
        p2p_launch_s=_optional(facts.p2p_launch_s),
        protocols={name: _protocol(protocol) for name, protocol in facts.protocols.items()},
        group_share={int(size): fact.value for size, fact in facts.group_share.items()},
        kind_share={kind: fact.value for kind, fact in facts.kind_share.items()},
    )


def _protocol(facts: ProtocolFacts) -> ProtocolSpec:
    return ProtocolSpec(
        launch_s=facts.launch_s.value,
        latency_s=facts.latency_s.value,
        efficiency=facts.efficiency.value,
    )


def _optional(fact: Fact[T] | None) -> T | None:
    return None if fact is None else fact.value
