"""Random placements of every operator, parameter and block entry equal one device.

The strongest test of rules, conversions and lowering together: any strategies that a plan may hold
must give the same loss and gradients.
"""

from __future__ import annotations

import pytest

from tests.parity.cases import MODELS, case
from tests.parity.choose import random_program
from tests.parity.simulate import assert_same, sharded

DEGREES = [(2, 1, 1), (4, 1, 1), (8, 1, 1), (2, 3, 1), (4, 1, 3), (2, 2, 3)]


@pytest.mark.parametrize(("tp", "dp", "num_microbatches"), DEGREES)
@pytest.mark.parametrize("name", MODELS)
def test_random_placements(name, tp, dp, num_microbatches):
    tested, truth = case(name), case(name).truth()
    for seed in range(2):
        emitted = random_program(tested.graph, tp, seed, dp=dp, num_microbatches=num_microbatches)
        assert_same(sharded(emitted, tested.model, tested.batch), truth)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
@pytest.mark.parametrize("name", MODELS)
def test_more_random_placements(name, seed):
    tested = case(name)
    tp, dp, num_microbatches = DEGREES[seed % len(DEGREES)]
    emitted = random_program(tested.graph, tp, seed, dp=dp, num_microbatches=num_microbatches)
    assert_same(sharded(emitted, tested.model, tested.batch), tested.truth())
