"""What a profile file may hold: the fields, their types and their ranges.

Every figure is a ``Fact``: ``{ value = ..., provenance = "...", source = "..." }``. Field names are
those of ``spec``. Unknown fields, wrong types, infinities and figures out of range are refused.
Where a file names a device or a link of the package, ``load`` has put its facts in already.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hardware_profiles.spec import Provenance

T = TypeVar("T")

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(gt=0, le=1)]
AtLeastOne = Annotated[float, Field(ge=1)]
FractionOrNone = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Bytes = Annotated[int, Field(ge=0, le=1 << 50)]
Text = Annotated[str, Field(min_length=1, max_length=1000)]
GroupSize = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,3}$")]
Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
Dtype = Literal["float64", "float32", "tf32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Fact(_Strict, Generic[T]):
    """One figure and where it comes from."""

    value: T
    provenance: Provenance
    source: Text


class DeviceFacts(_Strict):
    """The file's side of ``spec.DeviceSpec``."""

    name: Text
    peak_flops: dict[Dtype, Fact[Positive]]
    matmul_efficiency: Fact[Fraction]
    attention_forward_efficiency: Fact[Fraction] | None = None
    attention_backward_efficiency: Fact[Fraction] | None = None
    attention_generation: Fact[Count] | None = None
    float8_matmul_efficiency: Fact[Fraction] | None = None
    sm_count: Fact[Count] | None = None
    sm_load_bytes_per_s: Fact[Positive] | None = None
    memory_bytes: Fact[Bytes]
    memory_bytes_per_s: Fact[Positive]
    memory_efficiency: Fact[Fraction]
    optimizer_efficiency: Fact[Fraction] | None = None
    optimizer_tensor_s: Fact[NotNegative] | None = None
    optimizer_piece_s: Fact[NotNegative] | None = None
    operand_bytes_per_s: Fact[Positive] | None = None
    piece_read_s: Fact[NotNegative] | None = None
    split_gradient_s: Fact[NotNegative] | None = None
    message_host_s: Fact[NotNegative] | None = None
    gather_host_s: Fact[NotNegative] | None = None
    gather_copy_bytes_per_s: Fact[Positive] | None = None
    reduce_host_s: Fact[NotNegative] | None = None
    reduce_copy_bytes_per_s: Fact[Positive] | None = None
    launch_s: Fact[NotNegative]
    workspace_bytes: Fact[Bytes]
    host_link_bytes_per_s: Fact[Positive] | None = None

    @model_validator(mode="after")
    def _check(self) -> DeviceFacts:
        if "float32" not in self.peak_flops:
            raise ValueError("peak_flops.float32 is missing")
        if (self.sm_count is None) != (self.sm_load_bytes_per_s is None):
            raise ValueError("sm_count and sm_load_bytes_per_s go together")
        if self.workspace_bytes.value >= self.memory_bytes.value:
            raise ValueError("workspace_bytes leaves nothing of memory_bytes")
        return self


class ProtocolFacts(_Strict):
    """The file's side of ``spec.ProtocolSpec``."""

    launch_s: Fact[NotNegative]
    latency_s: Fact[NotNegative]
    efficiency: Fact[Fraction]


class LinkFacts(_Strict):
    """The file's side of ``spec.LinkSpec``; the switch adds where ``in_network_efficiency`` is."""

    name: Text
    bytes_per_s: Fact[Positive]
    efficiency: Fact[Fraction]
    p2p_efficiency: Fact[Fraction] | None = None
    in_network_efficiency: Fact[Fraction] | None = None
    latency_s: Fact[NotNegative]
    launch_s: Fact[NotNegative]
    p2p_launch_s: Fact[NotNegative] | None = None
    protocols: dict[Literal["ll", "ll128"], ProtocolFacts] = {}
    group_share: dict[GroupSize, Fact[Fraction]] = {}
    kind_share: dict[Kind, Fact[Fraction]] = {}


class MachineFacts(_Strict):
    """The file's side of ``spec.MachineSpec``.

    ``digest`` is that of the profile's figures as they were measured.
    """

    device: Text
    devices: Count
    cores: Count
    threads: Count
    memory_bytes: Bytes
    torch: Text
    measured_on: Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ProfileFacts(_Strict):
    """The file's side of ``spec.ClusterSpec``."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,99}$")]
    description: Text
    backend: Literal["nccl", "gloo"]
    gpus_per_node: Fact[Count]
    max_nodes: Fact[Count]
    scaleup_gpus: Fact[Count] | None = None
    nics_per_node: Fact[Count] | None = None
    oversubscription: Fact[AtLeastOne] | None = None
    overlap_efficiency: Fact[FractionOrNone]
    price_per_gpu_hour_usd: Fact[Positive] | None = None
    step_jitter: Fact[FractionOrNone] | None = None
    busy_share: dict[GroupSize, Fact[Fraction]] = {}
    machine: MachineFacts | None = None
    device: DeviceFacts
    intra_node: LinkFacts
    inter_node: LinkFacts

    @model_validator(mode="after")
    def _check(self) -> ProfileFacts:
        domain, price = self.scaleup_gpus, self.price_per_gpu_hour_usd
        if domain and domain.value % self.gpus_per_node.value:
            raise ValueError("scaleup_gpus is not a multiple of gpus_per_node")
        if price and price.provenance != "assumed":
            raise ValueError("price_per_gpu_hour_usd is an assumption: provenance must say assumed")
        return self


def facts_of(part: BaseModel | dict, prefix: str = "") -> Iterator[tuple[str, Fact]]:
    """All facts of a profile with their dotted names (``device.peak_flops.bfloat16``)."""
    for name, entry in part.items() if isinstance(part, dict) else part:
        if isinstance(entry, Fact):
            yield prefix + name, entry
        elif isinstance(entry, BaseModel | dict):
            yield from facts_of(entry, f"{prefix}{name}.")
