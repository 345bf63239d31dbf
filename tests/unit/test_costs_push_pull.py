"""Parameter servers: closed forms over the links of workers and servers, and the ring beside."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.collectives import collective_s
from hardware_profiles.load import load

A100, RACK, MANY = load("dgx-a100-80g"), load("gb200-nvl72"), load("p4d")
GB = 1e9


def push_pull_s(nbytes: float, workers: int, per_node: int, servers: int, cluster=A100) -> float:
    return collective_s("push_pull", nbytes, workers, per_node, cluster, servers=servers)


def links_s(nbytes: float, workers: int, per_node: int, servers: int, cluster) -> float:
    """Wire time of all links at once: of a worker's share of its node, of a server's share of the
    group (per_node of a node's devices belong to it)."""
    link = cluster.inter_node
    adapters = cluster.nics_per_node or cluster.gpus_per_node
    rate = link.bytes_per_s * (link.p2p_efficiency or link.efficiency) / cluster.oversubscription
    worker = adapters / cluster.gpus_per_node * rate
    server = adapters * per_node / cluster.gpus_per_node * rate
    return 2 * max(nbytes / worker, workers * nbytes / servers / server)


@settings(deadline=None, max_examples=200)
@given(
    st.floats(0, 1e11),
    st.integers(1, 64),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 64),
    st.sampled_from([A100, MANY, RACK, replace(A100, oversubscription=3.0)]),
)
def test_the_slower_link_decides(nbytes, nodes, per_node, servers, cluster):
    per_node = min(per_node, cluster.gpus_per_node)
    workers = nodes * per_node
    wire_s = links_s(nbytes, workers, per_node, servers, cluster)
    starts_s = push_pull_s(0.0, workers, per_node, servers, cluster)
    found_s = push_pull_s(nbytes, workers, per_node, servers, cluster)
    assert found_s == pytest.approx(starts_s + wire_s)
    near, far = cluster.intra_node, cluster.inter_node
    launches = (link.launch_s if link.p2p_launch_s is None else link.p2p_launch_s
                for link in (near, far))  # fmt: skip
    assert starts_s == pytest.approx(max(launches) + 2 * far.latency_s)


@settings(deadline=None, max_examples=100)
@given(st.floats(0, 1e11), st.integers(1, 64), st.integers(1, 64))
def test_servers_beyond_the_nodes_do_not_help(nbytes, nodes, servers):
    enough_s = push_pull_s(nbytes, nodes, 1, nodes)
    assert push_pull_s(nbytes, nodes, 1, nodes + servers) == enough_s
    assert push_pull_s(nbytes, nodes, 1, servers) >= enough_s


def test_as_many_servers_as_nodes_move_what_a_ring_moves():
    """Each worker sends S and fetches S; a ring of N sends 2 (N-1)/N S."""
    equal = replace(A100, inter_node=replace(A100.inter_node, p2p_efficiency=None))
    ring_s = collective_s("all_reduce", 64 * GB, 64, 1, equal)
    assert ring_s / push_pull_s(64 * GB, 64, 1, 64, equal) == pytest.approx(63 / 64, rel=1e-3)
    assert push_pull_s(64 * GB, 64, 1, 8, equal) / ring_s == pytest.approx(8, rel=0.02)


def test_rings_through_a_node_send_less_than_its_workers_one_by_one():
    """Eight workers in a node send eight times what its eight rings send over the network."""
    equal = replace(A100, inter_node=replace(A100.inter_node, p2p_efficiency=None))
    ring_s = collective_s("all_reduce", 64 * GB, 512, 8, equal)
    assert push_pull_s(64 * GB, 512, 8, 64, equal) / ring_s == pytest.approx(8, rel=0.02)


@pytest.mark.parametrize(("kind", "servers"), [("push_pull", 0), ("push_pull", -1),
                                               ("all_reduce", 1), ("all_reduce", -1)])  # fmt: skip
def test_servers_belong_to_push_and_pull_alone(kind, servers):
    with pytest.raises(ValueError, match="push_pull needs one or more, others none"):
        collective_s(kind, GB, 8, 8, A100, servers=servers)
