"""What a device and its links are worth while other devices of the node work.

Accelerators do not notice each other. Processes of one machine share its cores and its memory, so
that each gets the fraction ``ClusterSpec.busy_share`` of what one alone gets: its rates are lower
by it, what it starts takes as much longer.
"""

from __future__ import annotations

from dataclasses import replace

from hardware_profiles.spec import ClusterSpec, DeviceSpec, LinkSpec, ProtocolSpec


def in_use(cluster: ClusterSpec, devices: int) -> ClusterSpec:
    """The cluster as it is with so many devices of each node at work."""
    share = busy_share(cluster, devices)
    if share == 1:
        return cluster
    return replace(
        cluster,
        device=_device(cluster.device, share),
        intra_node=_link(cluster.intra_node, share),
        inter_node=_link(cluster.inter_node, share),
    )


def busy_share(cluster: ClusterSpec, devices: int) -> float:
    """Fraction of its rates that each of so many working devices of a node has.

    Between the numbers that the profile states, the time of one piece of work is on a straight
    line; beyond the largest it stays in proportion to the number.
    """
    times = {1: 1.0} | {number: 1 / share for number, share in cluster.busy_share.items()}
    below = max(number for number in times if number <= devices)
    above = min((number for number in times if number >= devices), default=None)
    if above is None:
        return below / (times[below] * devices) if cluster.busy_share else 1.0
    if above == below:
        return 1 / times[below]
    weight = (devices - below) / (above - below)
    return 1 / (times[below] * (1 - weight) + times[above] * weight)


def _device(device: DeviceSpec, share: float) -> DeviceSpec:
    load = device.sm_load_bytes_per_s
    return replace(
        device,
        matmul_efficiency=share * device.matmul_efficiency,
        float8_matmul_efficiency=_scaled(device.float8_matmul_efficiency, share),
        attention_forward_efficiency=_scaled(device.attention_forward_efficiency, share),
        attention_backward_efficiency=_scaled(device.attention_backward_efficiency, share),
        memory_efficiency=share * device.memory_efficiency,
        optimizer_efficiency=_scaled(device.optimizer_efficiency, share),
        optimizer_tensor_s=_scaled(device.optimizer_tensor_s, 1 / share),
        optimizer_piece_s=_scaled(device.optimizer_piece_s, 1 / share),
        operand_bytes_per_s=_scaled(device.operand_bytes_per_s, share),
        piece_read_s=_scaled(device.piece_read_s, 1 / share),
        split_gradient_s=_scaled(device.split_gradient_s, 1 / share),
        message_host_s=_scaled(device.message_host_s, 1 / share),
        gather_host_s=_scaled(device.gather_host_s, 1 / share),
        gather_copy_bytes_per_s=_scaled(device.gather_copy_bytes_per_s, share),
        reduce_host_s=_scaled(device.reduce_host_s, 1 / share),
        reduce_copy_bytes_per_s=_scaled(device.reduce_copy_bytes_per_s, share),
        launch_s=device.launch_s / share,
        sm_load_bytes_per_s=_scaled(load, share),
    )


def _link(link: LinkSpec, share: float) -> LinkSpec:
    return replace(
        link,
        efficiency=share * link.efficiency,
        p2p_efficiency=_scaled(link.p2p_efficiency, share),
        in_network_efficiency=_scaled(link.in_network_efficiency, share),
        latency_s=link.latency_s / share,
        launch_s=link.launch_s / share,
        p2p_launch_s=_scaled(link.p2p_launch_s, 1 / share),
        protocols={name: _protocol(found, share) for name, found in link.protocols.items()},
    )


def _protocol(protocol: ProtocolSpec, share: float) -> ProtocolSpec:
    return ProtocolSpec(
        launch_s=protocol.launch_s / share,
        latency_s=protocol.latency_s / share,
        efficiency=share * protocol.efficiency,
    )


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value * by
