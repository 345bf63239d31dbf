"""What one rank sends in each algorithm of a collective, and in how many dependent steps.

For a tensor of S bytes and ``r`` ranks in each of ``n`` nodes, ``N`` in all:

- ring: passes every rank in turn, ``N - n`` hops inside nodes and ``n - 1`` between them.
  All-gather and reduce-scatter send ``(N-1)/N S`` over the inner link; the rings of a node cross
  its border once each, so the share of each of its ``r`` ranks carries ``(N-1)/N S / r``.
  All-reduce is both.
- tree (all-reduce over several nodes): a chain in each node, a binary tree of nodes, up and down:
  ``2 (r-1)`` and ``2 ceil(log2 n)`` steps; every link of it carries S up and S down.
- chain (broadcast): every rank passes the S bytes on, those of a node through all its adapters.
- switch (NVLink SHARP): ``(r+1)/r S`` in two steps inside, a tree between the nodes.
- all-to-all: each rank sends ``S/N`` to each other rank.
- push and pull (parameter servers, Li et al. 2014): each rank sends S to ``s`` servers, then
  fetches S from them. A server holds ``1/s`` of the tensor and moves ``N S / s`` either way.

``CHUNKED`` collectives send chunk after chunk through both tiers at once; ``MESSAGES`` are sent
whole by pairs of ranks.

Ring and tree over two nodes send nearly as much over the network (NCCL's two-node tree can halve
it, measurements on two nodes do not show it).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

CollectiveKind = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "send_recv",
    "push_pull",
]


@dataclass(frozen=True, slots=True)
class Group:
    """A group's shape: ``local`` ranks (r) in each of ``nodes`` nodes (n)."""

    ranks: int
    local: int
    nodes: int

    @property
    def tree_depth(self) -> int:
        return math.ceil(math.log2(self.nodes))


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one rank sends over each tier, and in how many dependent steps."""

    inner_bytes: float
    inner_steps: int
    outer_bytes: float
    outer_steps: int


def _ring(nbytes: float, group: Group) -> Traffic:
    sent = nbytes * (group.ranks - 1) / group.ranks
    return Traffic(
        sent if group.local > 1 else 0.0,
        group.ranks - group.nodes,
        sent / group.local if group.nodes > 1 else 0.0,
        group.nodes - 1,
    )


def _double_ring(nbytes: float, group: Group) -> Traffic:
    half = _ring(nbytes, group)
    return Traffic(
        2 * half.inner_bytes, 2 * half.inner_steps, 2 * half.outer_bytes, 2 * half.outer_steps
    )


def _tree(nbytes: float, group: Group) -> Traffic:
    return Traffic(
        2 * nbytes if group.local > 1 else 0.0,
        2 * (group.local - 1),
        2 * nbytes / group.local if group.nodes > 1 else 0.0,
        2 * group.tree_depth,
    )


def switch_all_reduce(nbytes: float, group: Group) -> Traffic:
    """The traffic of one rank where the switch adds; for two ranks or more in each node."""
    tree = _tree(nbytes, group)
    inner_bytes = nbytes * (group.local + 1) / group.local
    return Traffic(inner_bytes, 2, tree.outer_bytes, tree.outer_steps)


def _all_to_all(nbytes: float, group: Group) -> Traffic:
    return Traffic(
        nbytes * (group.local - 1) / group.ranks,
        group.local - 1,
        nbytes * (group.ranks - group.local) / group.ranks,
        group.nodes - 1,
    )


def _chain(nbytes: float, group: Group) -> Traffic:
    return Traffic(
        nbytes if group.local > 1 else 0.0,
        group.ranks - group.nodes,
        nbytes / group.local if group.nodes > 1 else 0.0,
        group.nodes - 1,
    )


def _send_recv(nbytes: float, group: Group) -> Traffic:
    if group.nodes > 1:
        return Traffic(0.0, 0, nbytes, 1)
    return Traffic(nbytes, 1, 0.0, 0)


def push_pull(nbytes: float, nodes_a_server: float) -> Traffic:
    """What passes the slower one of a rank's share of its node's adapters and of a server's.

    Servers are nodes like those of the ranks. A group has of a server's adapters what it has of its
    own nodes': the same share for as many ranks as all servers together are nodes.
    """
    return Traffic(0.0, 0, 2 * nbytes * max(1.0, nodes_a_server), 2)


CHUNKED: dict[str, tuple[Callable[[float, Group], Traffic], ...]] = {
    "all_reduce": (_double_ring, _tree),
    "all_gather": (_ring,),
    "reduce_scatter": (_ring,),
    "broadcast": (_chain,),
}
MESSAGES: dict[str, Callable[[float, Group], Traffic]] = {
    "all_to_all": _all_to_all,
    "send_recv": _send_recv,
}
