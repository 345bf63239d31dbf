"""Time of a collective: alpha-beta over the links inside a node and between nodes.

A group of ``ranks`` has ``r`` ranks in each of ``n`` nodes (of ``n`` NVLink domains, where one
joins several nodes). Each rank moves some bytes over the inner link in some steps, then over its
share of the node's network adapters: all devices of a node send at once, as they do in training.
NCCL's hierarchical algorithms send chunk after chunk through both tiers, so that

    time = launch + inner steps * inner alpha + outer steps * outer alpha
           + max(inner bytes / inner rate, outer bytes / outer rate)

Bytes are those of the ring (a tensor of S bytes): all-reduce ``2 (r-1)/r S`` inside and
``2 (n-1)/n S/r`` outside, where the nodes form a binary tree (``2 ceil(log2 n)`` steps);
all-gather and reduce-scatter half of it, in a ring (``n-1`` steps). NVLink SHARP all-reduces move
``(r+1)/r S`` in two steps, and are taken where they are faster. In all-to-all the tiers add up: the
messages of a device share its injection. Formulas: nccl-tests PERFORMANCE.md, NCCL's tuning model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hardware_profiles.spec import ClusterSpec, LinkSpec

CollectiveKind = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"
]


@dataclass(frozen=True, slots=True)
class _Group:
    """A group's shape: ``local`` ranks (r) in each of ``nodes`` nodes (n)."""

    ranks: int
    local: int
    nodes: int

    @property
    def tree_depth(self) -> int:
        return math.ceil(math.log2(self.nodes))


@dataclass(frozen=True, slots=True)
class _Traffic:
    """What one rank sends over each tier, and in how many dependent steps."""

    inner_bytes: float
    inner_steps: int
    outer_bytes: float
    outer_steps: int


def collective_s(
    kind: CollectiveKind, nbytes: float, ranks: int, ranks_per_node: int, cluster: ClusterSpec
) -> float:
    """Seconds for one collective, zero for a group of one.

    Args:
        kind: which collective.
        nbytes: size of the whole tensor: what every rank has (all_reduce), the gathered output
            (all_gather), the input (reduce_scatter), one rank's local tensor (all_to_all), the
            message (broadcast, send_recv).
        ranks: size of the group.
        ranks_per_node: how many of them share a node; more than ``ranks`` means all.

    Raises:
        ValueError: unknown kind, or numbers that make no group.
    """
    if kind not in _TRAFFIC:
        raise ValueError(f"unknown collective {kind!r}; known: {', '.join(_TRAFFIC)}")
    if nbytes < 0 or ranks < 1 or not 1 <= ranks_per_node <= cluster.gpus_per_node:
        raise ValueError(
            f"no such group: {nbytes} bytes, {ranks} ranks, {ranks_per_node} in each node of "
            f"{cluster.gpus_per_node} devices"
        )
    if ranks == 1:
        return 0.0
    local = ranks_per_node * cluster.nodes_per_domain
    group = _Group(ranks, min(ranks, local), math.ceil(ranks / local))
    ring = _TRAFFIC[kind](nbytes, group)
    if kind in ("all_to_all", "send_recv"):
        return _message_s(ring, cluster)
    ring_s = _pipelined_s(ring, cluster, _ring_rate(cluster.intra_node))
    if kind != "all_reduce" or not cluster.intra_node.in_network_reduction:
        return ring_s
    switch = _in_network_all_reduce(nbytes, group)
    return min(ring_s, _pipelined_s(switch, cluster, _in_network_rate(cluster.intra_node)))


def _pipelined_s(traffic: _Traffic, cluster: ClusterSpec, inner_rate: float) -> float:
    outer_s = traffic.outer_bytes / (_ring_rate(cluster.inter_node) * cluster.network_share)
    return _latency_s(traffic, cluster) + max(traffic.inner_bytes / inner_rate, outer_s)


def _message_s(traffic: _Traffic, cluster: ClusterSpec) -> float:
    inner_s = traffic.inner_bytes / _message_rate(cluster.intra_node)
    outer_s = traffic.outer_bytes / (_message_rate(cluster.inter_node) * cluster.network_share)
    return _latency_s(traffic, cluster) + inner_s + outer_s


def _latency_s(traffic: _Traffic, cluster: ClusterSpec) -> float:
    inner, outer = cluster.intra_node, cluster.inter_node
    launch_s = max(inner.launch_s, outer.launch_s) if traffic.outer_steps else inner.launch_s
    return launch_s + traffic.inner_steps * inner.latency_s + traffic.outer_steps * outer.latency_s


def _ring_rate(link: LinkSpec) -> float:
    return link.bytes_per_s * link.efficiency


def _message_rate(link: LinkSpec) -> float:
    return link.bytes_per_s * (link.p2p_efficiency or link.efficiency)


def _in_network_rate(link: LinkSpec) -> float:
    return link.bytes_per_s * (link.in_network_efficiency or link.efficiency)


def _all_reduce(nbytes: float, group: _Group) -> _Traffic:
    half = _gather_or_scatter(nbytes, group)
    return _Traffic(
        2 * half.inner_bytes, 2 * half.inner_steps, 2 * half.outer_bytes, 2 * group.tree_depth
    )


def _in_network_all_reduce(nbytes: float, group: _Group) -> _Traffic:
    ring = _all_reduce(nbytes, group)
    if group.local == 1:
        return ring
    inner_bytes = nbytes * (group.local + 1) / group.local
    return _Traffic(inner_bytes, 2, ring.outer_bytes, ring.outer_steps)


def _gather_or_scatter(nbytes: float, group: _Group) -> _Traffic:
    return _Traffic(
        nbytes * (group.local - 1) / group.local,
        group.local - 1,
        nbytes / group.local * (group.nodes - 1) / group.nodes,
        group.nodes - 1,
    )


def _all_to_all(nbytes: float, group: _Group) -> _Traffic:
    return _Traffic(
        nbytes * (group.local - 1) / group.ranks,
        group.local - 1,
        nbytes * (group.ranks - group.local) / group.ranks,
        group.nodes - 1,
    )


def _broadcast(nbytes: float, group: _Group) -> _Traffic:
    return _Traffic(
        nbytes if group.local > 1 else 0.0,
        group.local - 1,
        nbytes / group.local if group.nodes > 1 else 0.0,
        group.tree_depth,
    )


def _send_recv(nbytes: float, group: _Group) -> _Traffic:
    if group.nodes > 1:
        return _Traffic(0.0, 0, nbytes, 1)
    return _Traffic(nbytes, 1, 0.0, 0)


_TRAFFIC: dict[str, Callable[[float, _Group], _Traffic]] = {
    "all_reduce": _all_reduce,
    "all_gather": _gather_or_scatter,
    "reduce_scatter": _gather_or_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "send_recv": _send_recv,
}
