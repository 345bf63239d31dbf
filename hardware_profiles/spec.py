"""What a profile says of a device, its links and the cluster they make.

SI units throughout: flops per second, bytes, bytes per second, seconds. Rates of links are per
direction; inside a node they are one device's, between nodes one network adapter's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Provenance = Literal["datasheet", "measured", "fitted", "assumed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceSpec:
    """One accelerator (or one process' share of a CPU).

    Attributes:
        peak_flops: dense peak by dtype name (``bfloat16`` ...).
        matmul_efficiency: achieved fraction of the peak on large matrix products, at the clock that
            the power limit leaves in training.
        memory_efficiency: achieved fraction of ``memory_bytes_per_s`` by large streaming kernels.
        launch_s: cost of starting one kernel, and of its ramp until memory is saturated.
        workspace_bytes: device context, NCCL and library workspaces.
        attention_forward_efficiency, attention_backward_efficiency: achieved fraction of the peak
            by the fused attention kernels at head dimension 128, long sequences and no mask; None:
            as ``matmul_efficiency``.
        optimizer_efficiency: ``memory_efficiency`` of an optimizer's step; None: the same.
        optimizer_tensor_s, optimizer_piece_s: what an optimizer's step takes for each tensor beside
            its bytes, and for one of which a rank holds a piece (a DTensor), where the host that
            starts it is the device; None: nothing.
        operand_bytes_per_s: rate at which a product takes its operands in and writes its result,
            before and after it multiplies, where one core does both; None: beside it.
        piece_read_s: what the host takes, forward and backward, for each use of a parameter of
            which a rank holds a piece over ``tp``, where the host that starts work is the device;
            as all of the following, None: nothing.
        split_gradient_s: likewise for each parameter and microbatch, where a schedule takes
            gradients of weights apart from the backward.
        message_host_s: likewise for each message of a program beside the message itself.
        gather_host_s, reduce_host_s: likewise for each unit whose weights FSDP2 gathers, or whose
            gradients it scatters.
        gather_copy_bytes_per_s, reduce_copy_bytes_per_s: rate at which it then copies the unit.
        attention_generation: of FlashAttention, whose kernels those rates are.
        float8_matmul_efficiency: ``matmul_efficiency`` of 8-bit products; None: the same.
        sm_count: multiprocessors; None: times do not depend on how a product is cut into tiles.
        sm_load_bytes_per_s: rate at which one multiprocessor loads operands of products.
    """

    name: str
    peak_flops: Mapping[str, float]
    matmul_efficiency: float
    memory_bytes: int
    memory_bytes_per_s: float
    memory_efficiency: float
    launch_s: float
    workspace_bytes: int
    host_link_bytes_per_s: float | None = None
    attention_forward_efficiency: float | None = None
    attention_backward_efficiency: float | None = None
    optimizer_efficiency: float | None = None
    optimizer_tensor_s: float | None = None
    optimizer_piece_s: float | None = None
    operand_bytes_per_s: float | None = None
    piece_read_s: float | None = None
    split_gradient_s: float | None = None
    message_host_s: float | None = None
    gather_host_s: float | None = None
    gather_copy_bytes_per_s: float | None = None
    reduce_host_s: float | None = None
    reduce_copy_bytes_per_s: float | None = None
    attention_generation: int = 2
    float8_matmul_efficiency: float | None = None
    sm_count: int | None = None
    sm_load_bytes_per_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ProtocolSpec:
    """One of NCCL's ways to move the chunks of a ring or tree: start sooner, or move more a second.

    Attributes:
        launch_s: cost of one collective apart from its steps and bytes.
        latency_s: cost of one step (alpha).
        efficiency: achieved fraction of the link's peak.
    """

    launch_s: float
    latency_s: float
    efficiency: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkSpec:
    """One tier of the network.

    Attributes:
        name: ``nvlink``, ``infiniband``, ``loopback``.
        bytes_per_s: peak of one device (of one adapter between nodes), one direction.
        efficiency: achieved fraction of the peak by large ring collectives.
        latency_s: cost of one step of a collective (alpha).
        in_network_reduction: the switch adds (NVLink SHARP).
        launch_s: cost of one collective apart from its steps and bytes.
        p2p_efficiency: achieved fraction of the peak by large messages between two devices and by
            all-to-alls; None: as ``efficiency``.
        in_network_efficiency: achieved fraction of the peak when the switch adds; None: as
            ``efficiency``.
        p2p_launch_s: ``launch_s`` of messages and all-to-alls; None: the same.
        protocols: protocols of small messages by name (``ll``, ``ll128``), beside the one of large
            messages that ``launch_s``, ``latency_s`` and ``efficiency`` describe.
        group_share: fraction of the rate that a group gets that has so many ranks in a node, where
            devices are wired to each other and not to a switch; 1 where no size is given.
        kind_share: fraction of the rate that a kind of collective gets (``reduce_scatter``), where
            the library makes extra copies for it or sends more; 1 where it is not named.
    """

    name: str
    bytes_per_s: float
    efficiency: float
    latency_s: float
    in_network_reduction: bool = False
    launch_s: float = 0.0
    p2p_efficiency: float | None = None
    in_network_efficiency: float | None = None
    p2p_launch_s: float | None = None
    protocols: Mapping[str, ProtocolSpec] = field(default_factory=dict)
    group_share: Mapping[int, float] = field(default_factory=dict)
    kind_share: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineSpec:
    """The machine that a profile was measured on; two that are equal need no profile each.

    Attributes:
        device: what the vendor calls the accelerator, or the processor.
        devices: accelerators of a node; the most processes that were measured at once on a CPU.
        cores: that processes may use.
        threads: of each process.
        memory_bytes: of the machine, for all processes.
        torch: version.
    """

    device: str
    devices: int
    cores: int
    threads: int
    memory_bytes: int
    torch: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterSpec:
    """Equal nodes of equal devices: one link tier inside a node, one between nodes.

    Attributes:
        scaleup_gpus: devices of whole nodes that the inner link joins (NVL72); None: one node's.
        nics_per_node: network adapters that the devices of a node share; None: one each.
        oversubscription: how many times more the adapters send than the network carries.
        price_per_gpu_hour_usd: assumed; for reports only.
        overlap_efficiency: fraction of data-parallel communication that can hide under compute.
        step_jitter: standard deviation of one device's step time over its mean; None: devices are
            equally fast.
        busy_share: fraction of its own and its links' rates that each device has while so many of a
            node work (``sharing``); empty where devices do not notice each other.
        machine: where the profile was measured; None: figures of machines of a kind.
        provenance: source class of every value, by dotted name (``device.launch_s``).
        digest: hash of the profile's values, kept in plans to notice a changed profile.
    """

    name: str
    description: str
    device: DeviceSpec
    gpus_per_node: int
    max_nodes: int
    intra_node: LinkSpec
    inter_node: LinkSpec
    backend: Literal["nccl", "gloo"]
    overlap_efficiency: float
    provenance: Mapping[str, Provenance]
    digest: str
    scaleup_gpus: int | None = None
    nics_per_node: int | None = None
    oversubscription: float = 1.0
    price_per_gpu_hour_usd: float | None = None
    step_jitter: float | None = None
    busy_share: Mapping[int, float] = field(default_factory=dict)
    machine: MachineSpec | None = None

    @property
    def runs_on_host(self) -> bool:
        """Whether the devices are shares of CPUs."""
        return self.backend == "gloo"

    @property
    def nodes_per_domain(self) -> int:
        """Nodes that the inner link joins."""
        return max(1, (self.scaleup_gpus or 0) // self.gpus_per_node)

    @property
    def network_share(self) -> float:
        """Adapters per device when all devices of a node send, over the oversubscription."""
        nics = self.nics_per_node or self.gpus_per_node
        return nics / self.gpus_per_node / self.oversubscription
