"""Collectives: closed forms, order, published peaks, and no jumps."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.collectives import collective_s
from hardware_profiles.load import load, names

KINDS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"]
A100, H100 = load("dgx-a100-80g"), load("dgx-h100")
GB = 1e9
WITHOUT_SWITCH_ADDITION = [
    replace(cluster, intra_node=replace(cluster.intra_node, in_network_reduction=False))
    for cluster in map(load, ("cpu-gloo", "dgx-a100-80g", "dgx-h100"))
]


@pytest.mark.parametrize(
    ("cluster", "ranks", "peak_bus_bytes_per_s"),
    [(A100, 8, 234.6 * GB), (A100, 512, 192 * GB), (H100, 8, 480 * GB), (H100, 512, 380 * GB)],
)
def test_large_all_reduce_is_at_most_a_tenth_below_published_peaks(
    cluster, ranks, peak_bus_bytes_per_s
):
    """stas00/ml-engineering, bus bandwidth in one node and over many: A100 at 8 GiB, else GTC."""
    nbytes = 64 * GB
    seconds = collective_s("all_reduce", nbytes, ranks, 8, cluster)
    bus_bytes_per_s = 2 * (ranks - 1) / ranks * nbytes / seconds
    assert 0.9 * peak_bus_bytes_per_s < bus_bytes_per_s < 1.01 * peak_bus_bytes_per_s


def test_ring_of_h100_stays_within_a_tenth_below_its_published_peak():
    ring = replace(H100, intra_node=replace(H100.intra_node, in_network_reduction=False))
    bus_bytes_per_s = 2 * 7 / 8 * 64 * GB / collective_s("all_reduce", 64 * GB, 8, 8, ring)
    assert 0.9 * 370 * GB < bus_bytes_per_s < 370 * GB


def test_where_the_ranks_sit_decides():
    packed_s = collective_s("all_reduce", GB, 8, 8, A100)
    spread_s = collective_s("all_reduce", GB, 8, 1, A100)
    half_s = collective_s("all_reduce", GB, 8, 4, A100)
    assert packed_s < half_s < spread_s
    assert spread_s == pytest.approx(2 * 7 / 8 / (25 * A100.inter_node.efficiency), rel=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_closed_forms_on_two_ranks_of_one_node(kind):
    link = A100.intra_node
    ring, message = (link.bytes_per_s * rate for rate in (link.efficiency, link.p2p_efficiency))
    expected = {
        "all_reduce": link.launch_s + 2 * link.latency_s + GB / ring,
        "all_gather": link.launch_s + link.latency_s + GB / 2 / ring,
        "reduce_scatter": link.launch_s + link.latency_s + GB / 2 / ring,
        "broadcast": link.launch_s + link.latency_s + GB / ring,
        "all_to_all": link.p2p_launch_s + link.latency_s + GB / 2 / message,
        "send_recv": link.p2p_launch_s + link.latency_s + GB / message,
    }
    assert collective_s(kind, GB, 2, 2, A100) == pytest.approx(expected[kind])


def test_small_messages_take_the_protocol_that_starts_soonest():
    link = A100.intra_node
    ll = link.protocols["ll"]
    expected = ll.launch_s + 14 * ll.latency_s + 14 / 8 * 1e3 / (ll.efficiency * link.bytes_per_s)
    assert collective_s("all_reduce", 1e3, 8, 8, A100) == pytest.approx(expected)


def test_protocol_must_be_known_on_both_tiers():
    alone = replace(A100, inter_node=replace(A100.inter_node, protocols={}))
    plain = replace(alone, intra_node=replace(A100.intra_node, protocols={}))
    assert collective_s("all_gather", 1e3, 8, 8, alone) < collective_s(
        "all_gather", 1e3, 8, 8, plain
    )
    assert collective_s("all_gather", 1e3, 16, 8, alone) == collective_s(
        "all_gather", 1e3, 16, 8, plain
    )


def test_trees_reduce_small_tensors_over_many_nodes():
    link, far = A100.intra_node.protocols["ll"], A100.inter_node.protocols["ll"]
    steps_s = 2 * 7 * link.latency_s + 2 * 6 * far.latency_s
    assert collective_s("all_reduce", 0, 512, 8, A100) == pytest.approx(link.launch_s + steps_s)
    gathers_s = link.launch_s + 448 * link.latency_s + 63 * far.latency_s
    assert collective_s("all_gather", 0, 512, 8, A100) == pytest.approx(gathers_s)


def test_rings_cross_a_node_border_once_each():
    """Two nodes: each border carries (N-1)/N of the gathered tensor, over all adapters."""
    far = A100.inter_node
    wire_s = 15 / 16 * 64 * GB / (8 * far.bytes_per_s * far.efficiency)
    assert collective_s("all_gather", 64 * GB, 16, 8, A100) == pytest.approx(wire_s, rel=0.01)


def test_groups_wired_to_each_other_get_their_share_of_the_links():
    mesh = load("mi300x-node")
    rates = [
        2 * (ranks - 1) / ranks * 64 * GB / collective_s("all_reduce", 64 * GB, ranks, ranks, mesh)
        for ranks in (2, 4, 8)
    ]
    assert rates[0] / rates[2] == pytest.approx(1 / 7, rel=0.01)
    assert rates[1] / rates[2] == pytest.approx(3 / 7, rel=0.01)


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
two_group_sizes = st.tuples(ranks, ranks).map(sorted)
per_node = st.integers(1, 8)
clusters = st.sampled_from([load(name) for name in names()])
growth = st.one_of(st.floats(1, 1.05), st.floats(1, 100))


def check_growth(kind, nbytes, factor, group, local, cluster):
    """More bytes never take less time, nor more than their share more: no seam jumps."""
    local = min(local, cluster.gpus_per_node)
    before = collective_s(kind, nbytes, group, local, cluster)
    after = collective_s(kind, nbytes * factor, group, local, cluster)
    assert before <= after <= before * factor * (1 + 1e-9)


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(KINDS), sizes, growth, ranks, per_node, clusters)
def test_time_grows_with_bytes_without_jumps(kind, nbytes, factor, group, local, cluster):
    check_growth(kind, nbytes, factor, group, local, cluster)


@pytest.mark.slow
@settings(deadline=None, max_examples=1000)
@given(st.sampled_from(KINDS), sizes, growth, ranks, per_node, clusters)
def test_time_grows_with_bytes_without_jumps_in_a_thousand_cases(
    kind, nbytes, factor, group, local, cluster
):
    check_growth(kind, nbytes, factor, group, local, cluster)


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
def test_all_reduce_is_no_slower_than_a_scatter_and_a_gather(nbytes, group, local, cluster):
    halves = [collective_s(k, nbytes, group, local, cluster) for k in KINDS[1:3]]
    whole = collective_s("all_reduce", nbytes, group, local, cluster)
    assert whole <= sum(halves) + 1e-12


@pytest.mark.parametrize(
    ("kind", "nbytes", "group", "local"),
    [("gather", 1, 2, 2), ("all_reduce", -1, 2, 2), ("all_reduce", 1, 0, 1),
     ("all_reduce", 1, 2, 0), ("all_reduce", 1, 16, 16)],
)  # fmt: skip
def test_impossible_groups_are_refused(kind, nbytes, group, local):
    with pytest.raises(ValueError, match=r"unknown collective|no such group"):
        collective_s(kind, nbytes, group, local, A100)
