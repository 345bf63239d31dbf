"""No profile has a seam: times pass on where a collective changes its algorithm or protocol.

Seven groups of each of the profiles and kinds, over a decade of sizes each: a thousand cases.
"""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.algorithms import CollectiveKind
from cost_models.collectives import collective_s
from hardware_profiles.load import load, names

PROFILES = {name: load(name) for name in names()}
KINDS = [kind for kind in get_args(CollectiveKind) if kind != "push_pull"]
STEP = 1.1
LARGEST_JUMP = 1.15

first_sizes = st.floats(0, 10).map(lambda power: 10.0**power)
groups = st.one_of(st.sampled_from([2, 4, 8, 16, 64, 512]), st.integers(1, 2048))
per_node = st.integers(1, 8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PROFILES)
@settings(deadline=None, max_examples=7)
@given(first_sizes, groups, per_node)
def test_times_pass_on_at_every_seam(name, kind, first, ranks, local):
    cluster = PROFILES[name]
    local = min(local, cluster.gpus_per_node)
    sizes = [first * STEP**index for index in range(25)]
    times = [collective_s(kind, nbytes, ranks, local, cluster) for nbytes in sizes]
    for before, after in pairwise(times):
        assert before <= after <= LARGEST_JUMP * before


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from([name for name in PROFILES if PROFILES[name].gpus_per_node > 1]),
    st.sampled_from(["all_gather", "reduce_scatter", "broadcast"]),
    first_sizes,
    st.sampled_from([1, 2, 4]),
    st.integers(1, 128),
)
def test_closer_ranks_are_never_slower(name, kind, nbytes, local, nodes):
    """Of rings and chains; small all-reduces pass fewer steps where each node has one rank."""
    cluster = PROFILES[name]
    packed = min(2 * local, cluster.gpus_per_node)
    local = min(local, packed)
    spread_s = collective_s(kind, nbytes, packed * nodes, local, cluster)
    packed_s = collective_s(kind, nbytes, packed * nodes, packed, cluster)
    assert packed_s <= spread_s * (1 + 1e-9)
