"""Collectives: closed forms, order, and published measurements."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.collectives import collective_s
from hardware_profiles.load import load

KINDS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"]
A100, H100 = load("dgx-a100-80g"), load("dgx-h100")
GB = 1e9
WITHOUT_SWITCH_ADDITION = [
    replace(cluster, intra_node=replace(cluster.intra_node, in_network_reduction=False))
    for cluster in map(load, ("cpu-gloo", "dgx-a100-80g", "dgx-h100"))
]

# (ranks, MiB, us): nccl-tests all-reduce on NVSwitch A100s; vTrain trace/a100 for 2 to 6 ranks,
# stas00/ml-engineering network/README.md for 8.
A100_ALL_REDUCE = [
    (2, 1, 44.21), (2, 4, 61.18), (2, 16, 131.9), (2, 64, 404.7), (2, 256, 1455.8),
    (2, 1024, 5442.8), (3, 1, 63.91), (3, 16, 155.0), (3, 256, 1786.0), (3, 1024, 6757.1),
    (4, 1, 51.4), (4, 4, 77.32), (4, 16, 179.6), (4, 64, 543.8), (4, 256, 1929.0),
    (4, 1024, 7259.4), (5, 8, 123.8), (5, 128, 1066.7), (6, 1, 73.0), (6, 16, 203.2),
    (6, 256, 2115.9), (8, 1, 101.9), (8, 2, 101.4), (8, 4, 101.5), (8, 8, 133.5),
    (8, 16, 276.6), (8, 32, 424.0), (8, 64, 684.6), (8, 128, 1327.6), (8, 256, 2420.6),
    (8, 512, 4218.4), (8, 1024, 8203.9), (8, 4096, 32136.0), (8, 16384, 127997.0),
]  # fmt: skip

# (ranks, MiB, ms): all-to-all in one node, PKU-DAIR/Hetu-Galvatron hardware_configs.
A100_ALL_TO_ALL = [
    (8, 64, 0.3997), (8, 256, 1.2981), (8, 1024, 4.8151), (4, 64, 0.3654), (4, 256, 1.1567),
    (4, 1024, 4.0389), (2, 64, 0.2928), (2, 256, 0.8806), (2, 1024, 3.4954),
]  # fmt: skip


@pytest.mark.parametrize(("ranks", "mebibytes", "microseconds"), A100_ALL_REDUCE)
def test_all_reduce_within_a_third_of_a100_measurements(ranks, mebibytes, microseconds):
    predicted_s = collective_s("all_reduce", mebibytes * 2**20, ranks, ranks, A100)
    assert predicted_s == pytest.approx(microseconds * 1e-6, rel=0.33)


def test_all_reduce_meets_a100_measurements_on_average():
    errors = [
        abs(math.log(collective_s("all_reduce", size * 2**20, n, n, A100) / (us * 1e-6)))
        for n, size, us in A100_ALL_REDUCE
    ]
    assert sum(errors) / len(errors) < 0.12


@pytest.mark.parametrize(("ranks", "mebibytes", "milliseconds"), A100_ALL_TO_ALL)
def test_all_to_all_within_a_third_of_measurements(ranks, mebibytes, milliseconds):
    predicted_s = collective_s("all_to_all", mebibytes * 2**20, ranks, ranks, A100)
    assert predicted_s == pytest.approx(milliseconds * 1e-3, rel=0.33)


@pytest.mark.parametrize(
    ("cluster", "ranks", "peak_bus_bytes_per_s"),
    [(A100, 8, 232 * GB), (A100, 512, 192 * GB), (H100, 8, 480 * GB), (H100, 512, 380 * GB)],
)
def test_large_all_reduce_stays_within_a_tenth_below_published_peaks(
    cluster, ranks, peak_bus_bytes_per_s
):
    """NVIDIA GTC 2024, bus bandwidth in one node and over many, in stas00/ml-engineering."""
    nbytes = 64 * GB
    seconds = collective_s("all_reduce", nbytes, ranks, 8, cluster)
    bus_bytes_per_s = 2 * (ranks - 1) / ranks * nbytes / seconds
    assert 0.9 * peak_bus_bytes_per_s < bus_bytes_per_s < peak_bus_bytes_per_s


def test_ring_of_h100_stays_within_a_tenth_below_its_published_peak():
    ring = replace(H100, intra_node=replace(H100.intra_node, in_network_reduction=False))
    bus_bytes_per_s = 2 * 7 / 8 * 64 * GB / collective_s("all_reduce", 64 * GB, 8, 8, ring)
    assert 0.9 * 370 * GB < bus_bytes_per_s < 370 * GB


def test_where_the_ranks_sit_decides():
    packed_s = collective_s("all_reduce", GB, 8, 8, A100)
    spread_s = collective_s("all_reduce", GB, 8, 1, A100)
    half_s = collective_s("all_reduce", GB, 8, 4, A100)
    assert packed_s < half_s < spread_s
    assert spread_s == pytest.approx(2 * 7 / 8 / 22.5, rel=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_closed_forms_on_two_ranks_of_one_node(kind):
    link = A100.intra_node
    ring, message = (link.bytes_per_s * rate for rate in (link.efficiency, link.p2p_efficiency))
    expected = {
        "all_reduce": 2 * link.latency_s + GB / ring,
        "all_gather": link.latency_s + GB / 2 / ring,
        "reduce_scatter": link.latency_s + GB / 2 / ring,
        "all_to_all": link.latency_s + GB / 2 / message,
        "broadcast": link.latency_s + GB / ring,
        "send_recv": link.latency_s + GB / message,
    }
    assert collective_s(kind, GB, 2, 2, A100) == pytest.approx(link.launch_s + expected[kind])


def test_devices_share_the_adapters_of_their_node():
    few = replace(A100, nics_per_node=2)
    seconds = [collective_s("all_gather", GB, 16, 1, cluster) for cluster in (few, A100)]
    ratio = seconds[0] / seconds[1]
    assert ratio == pytest.approx(4, rel=0.02)


def test_nodes_of_one_domain_never_use_the_network():
    rack = load("gb200-nvl72")
    slow = replace(rack, inter_node=replace(rack.inter_node, bytes_per_s=1.0))
    for kind in KINDS:
        assert collective_s(kind, GB, 72, 4, slow) == collective_s(kind, GB, 72, 4, rack)
        assert collective_s(kind, GB, 76, 4, slow) > collective_s(kind, GB, 76, 4, rack)
        assert collective_s(kind, GB, 18, 1, slow) == collective_s(kind, GB, 18, 1, rack)


@pytest.mark.parametrize("kind", KINDS)
def test_group_of_one_is_free(kind):
    assert collective_s(kind, GB, 1, 1, H100) == 0.0


sizes = st.floats(0, 1e11)
ranks = st.integers(1, 2048)
two_sizes = st.tuples(sizes, sizes).map(sorted)
two_group_sizes = st.tuples(ranks, ranks).map(sorted)
per_node = st.integers(1, 8)
clusters = st.sampled_from([A100, H100, *WITHOUT_SWITCH_ADDITION])


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(KINDS), two_sizes, ranks, per_node, clusters)
def test_more_bytes_never_take_less_time(kind, nbytes, group, local, cluster):
    low, high = nbytes
    assert collective_s(kind, low, group, local, cluster) <= collective_s(
        kind, high, group, local, cluster
    )


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from(KINDS),
    sizes,
    two_group_sizes,
    per_node,
    st.sampled_from(WITHOUT_SWITCH_ADDITION),
)
def test_more_ranks_never_take_less_time(kind, nbytes, groups, local, cluster):
    low, high = groups
    assert (
        collective_s(kind, nbytes, low, local, cluster)
        <= collective_s(kind, nbytes, high, local, cluster) * (1 + 1e-9) + 1e-12
    )


@settings(deadline=None, max_examples=100)
@given(sizes, ranks, per_node)
def test_switch_that_adds_never_hurts_and_never_beats_the_wire(nbytes, group, local):
    ring = replace(H100, intra_node=replace(H100.intra_node, in_network_reduction=False))
    seconds = collective_s("all_reduce", nbytes, group, local, H100)
    assert seconds <= collective_s("all_reduce", nbytes, group, local, ring)
    if group > 1:
        assert seconds >= nbytes / H100.intra_node.bytes_per_s


@settings(deadline=None, max_examples=100)
@given(sizes, ranks, per_node, st.sampled_from(WITHOUT_SWITCH_ADDITION))
def test_all_reduce_is_a_scatter_and_a_gather_but_for_latency(nbytes, group, local, cluster):
    halves = [collective_s(k, nbytes, group, local, cluster) for k in KINDS[1:3]]
    whole = collective_s("all_reduce", nbytes, group, local, cluster)
    assert whole <= sum(halves) + 1e-12
    empty = [collective_s(k, 0.0, group, local, cluster) for k in ("all_reduce", "all_gather")]
    assert whole - empty[0] == pytest.approx(sum(halves) - 2 * empty[1], abs=1e-9, rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "nbytes", "group", "local"),
    [("gather", 1, 2, 2), ("all_reduce", -1, 2, 2), ("all_reduce", 1, 0, 1),
     ("all_reduce", 1, 2, 0), ("all_reduce", 1, 16, 16)],
)  # fmt: skip
def test_impossible_groups_are_refused(kind, nbytes, group, local):
    with pytest.raises(ValueError, match=r"unknown collective|no such group"):
        collective_s(kind, nbytes, group, local, A100)
