"""Time of a collective: the fastest of NCCL's algorithms and protocols on a two-tier network.

A group has ``r`` ranks in each of ``n`` nodes, ``N`` in all (NVLink domains take the place of nodes
where one joins several). A rank moves some bytes over the inner link in some dependent steps, then
some over its share of the node's network adapters: all devices of a node send at once, as they do
in training. Chunk after chunk goes through both tiers, so that

    time = launch + inner steps * inner alpha + outer steps * outer alpha
           + max(inner bytes / inner rate, outer bytes / outer rate)

``algorithms`` has the steps and bytes of rings, trees and the switch. Launch, alpha and rate are
those of a protocol: large messages fill the link, small ones (LL, LL128) start sooner and move
less a second; a protocol is open to a group where each tier it crosses has it. NCCL picks by its
own estimate of the same minimum. The minimum and maximum of straight lines over the size never
jump: ``t(S) <= t(k S) <= k t(S)`` for every k >= 1. In all-to-all the tiers add up, since the
messages of a device share its injection. Push and pull of parameter servers is there to compare
with; no plan uses it. Formulas: nccl-tests PERFORMANCE.md, NCCL's tuning model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from cost_models.algorithms import (
    CHUNKED,
    MESSAGES,
    CollectiveKind,
    Group,
    Traffic,
    push_pull,
    switch_all_reduce,
)
from hardware_profiles.spec import ClusterSpec, LinkSpec, ProtocolSpec

__all__ = ["CollectiveKind", "collective_s"]


@dataclass(frozen=True, slots=True)
class _Pace:
    """One protocol on one tier: cost of a start and of a step, and bytes per second."""

    launch_s: float
    latency_s: float
    rate: float


def collective_s(
    kind: CollectiveKind,
    nbytes: float,
    ranks: int,
    ranks_per_node: int,
    cluster: ClusterSpec,
    *,
    servers: int = 0,
) -> float:
    """Seconds for one collective, zero for a group of one without servers.

    Args:
        kind: which collective.
        nbytes: size of the whole tensor: what every rank has (all_reduce), the gathered output
            (all_gather), the input (reduce_scatter), one rank's local tensor (all_to_all), the
            message (broadcast, send_recv), what every rank pushes and pulls (push_pull).
        ranks: size of the group.
        ranks_per_node: how many of them share a node; more than ``ranks`` means all.
        servers: nodes beside the group's that hold the parameters, of push_pull alone.

    Raises:
        ValueError: unknown kind, or numbers that make no group.
    """
    _check_kind(kind, servers)
    if nbytes < 0 or ranks < 1 or not 1 <= ranks_per_node <= cluster.gpus_per_node:
        raise ValueError(
            f"no such group: {nbytes} bytes, {ranks} ranks, {ranks_per_node} in each node of "
            f"{cluster.gpus_per_node} devices"
        )
    local = ranks_per_node * cluster.nodes_per_domain
    group = Group(ranks, min(ranks, local), math.ceil(ranks / local))
    if kind == "push_pull":
        nodes = ranks / min(ranks, ranks_per_node)
        return _message_s(kind, push_pull(nbytes, nodes / servers), group, cluster)
    if ranks == 1:
        return 0.0
    if kind in MESSAGES:
        return _message_s(kind, MESSAGES[kind](nbytes, group), group, cluster)
    return min(_ways_s(kind, nbytes, group, cluster))


def _check_kind(kind: CollectiveKind, servers: int) -> None:
    known = get_args(CollectiveKind)
    if kind not in known:
        raise ValueError(f"unknown collective {kind!r}; known: {', '.join(known)}")
    if servers < 0 or (kind == "push_pull") != (servers > 0):
        raise ValueError(f"{kind} with {servers} servers: push_pull needs one or more, others none")


def _ways_s(
    kind: CollectiveKind, nbytes: float, group: Group, cluster: ClusterSpec
) -> Iterator[float]:
    """Seconds by every algorithm and protocol that the group can use."""
    traffics = [algorithm(nbytes, group) for algorithm in CHUNKED[kind]]
    for inner, outer in _ring_paces(kind, group, cluster):
        for traffic in traffics:
            yield _pipelined_s(traffic, inner, outer)
    if kind == "all_reduce" and cluster.intra_node.in_network_reduction and group.local > 1:
        yield _pipelined_s(switch_all_reduce(nbytes, group), *_switch_paces(cluster))


def _message_s(kind: CollectiveKind, traffic: Traffic, group: Group, cluster: ClusterSpec) -> float:
    inner, outer = _message_paces(kind, group, cluster)
    return _latency_s(traffic, inner, outer) + sum(_transfers_s(traffic, inner, outer))


def _pipelined_s(traffic: Traffic, inner: _Pace, outer: _Pace) -> float:
    return _latency_s(traffic, inner, outer) + max(_transfers_s(traffic, inner, outer))


def _latency_s(traffic: Traffic, inner: _Pace, outer: _Pace) -> float:
    launch_s = max(inner.launch_s, outer.launch_s) if traffic.outer_steps else inner.launch_s
    return launch_s + traffic.inner_steps * inner.latency_s + traffic.outer_steps * outer.latency_s


def _transfers_s(traffic: Traffic, inner: _Pace, outer: _Pace) -> tuple[float, float]:
    return traffic.inner_bytes / inner.rate, traffic.outer_bytes / outer.rate


def _ring_paces(
    kind: CollectiveKind, group: Group, cluster: ClusterSpec
) -> Iterator[tuple[_Pace, _Pace]]:
    """Paces of both tiers for every protocol that the group can use; large messages' first."""
    inner, outer = cluster.intra_node, cluster.inter_node
    inner_scale = inner.bytes_per_s * _share(inner, kind) * inner.group_share.get(group.local, 1.0)
    outer_scale = outer.bytes_per_s * _share(outer, kind) * cluster.network_share
    far = _pace(outer, outer_scale)
    yield _pace(inner, inner_scale), far
    for name, protocol in inner.protocols.items():
        if group.nodes == 1:
            yield _pace(protocol, inner_scale), far
        elif name in outer.protocols:
            yield _pace(protocol, inner_scale), _pace(outer.protocols[name], outer_scale)


def _pace(protocol: LinkSpec | ProtocolSpec, scale: float) -> _Pace:
    return _Pace(protocol.launch_s, protocol.latency_s, scale * protocol.efficiency)


def _switch_paces(cluster: ClusterSpec) -> tuple[_Pace, _Pace]:
    inner, outer = cluster.intra_node, cluster.inter_node
    rate = inner.bytes_per_s * (inner.in_network_efficiency or inner.efficiency)
    far = _pace(outer, outer.bytes_per_s * cluster.network_share)
    return _Pace(inner.launch_s, inner.latency_s, rate), far


def _share(link: LinkSpec, kind: CollectiveKind) -> float:
    return link.kind_share.get(kind, 1.0)


def _message_paces(kind: CollectiveKind, group: Group, cluster: ClusterSpec) -> tuple[_Pace, _Pace]:
    inner, outer = cluster.intra_node, cluster.inter_node
    share = inner.group_share.get(group.local, 1.0)
    return (
        _message_pace(inner, share * _share(inner, kind)),
        _message_pace(outer, cluster.network_share * _share(outer, kind)),
    )


def _message_pace(link: LinkSpec, share: float) -> _Pace:
    launch_s = link.launch_s if link.p2p_launch_s is None else link.p2p_launch_s
    rate = link.bytes_per_s * share * (link.p2p_efficiency or link.efficiency)
    return _Pace(launch_s, link.latency_s, rate)
