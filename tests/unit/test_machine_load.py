"""What others take of a machine is told by node."""

from __future__ import annotations

import pytest

from autoplan.runtime.machine_load import Load, other_load

RANKS = [Load(0.2, 0.5), Load(0.2, 0.5), Load(0.1, 0.9), Load(0.3, 0.9)]


def test_the_node_with_the_most_of_others_counts():
    assert other_load(RANKS, per_node=2) == pytest.approx(0.5)
    assert other_load(RANKS[:2], per_node=2) == pytest.approx(0.1)


def test_what_ranks_take_themselves_is_no_load():
    assert other_load([Load(0.6, 0.5)], per_node=1) == 0


def test_a_node_that_does_not_tell():
    assert other_load([*RANKS, Load(0.2, 0.0), Load(0.2, 0.0)], per_node=2) is None
