"""A tiny twin of each family of the zoo under random placements equals one device."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from tests.families import TINY, random_batch, real, tiny, traced
from tests.parity.cases import BATCH, Case
from tests.parity.choose import random_program
from tests.parity.simulate import assert_same, sharded

DEGREES = [(2, 3, 1), (4, 1, 3)]
"""Ranks of tp and of dp, and microbatches."""

NORMS_THE_BATCH = ("resnet50",)
"""Ranks of dp would have to meet, which run one after another here."""

AMPLIFIES_FLOAT32 = ("t5-small", "mamba2-130m")
"""Roundings to float32 grow: scores are not scaled down, or states are kept in it."""


@cache
def case(name: str) -> Case:
    torch.manual_seed(0)
    batch = random_batch(tiny(name), BATCH, torch.float64)
    return Case(real(name), batch, traced(name).at_batch(BATCH))


def _check(name: str, seed: int, degrees: tuple[int, int, int]) -> None:
    tested = case(name)
    tp, dp, num_microbatches = (degrees[0], 1, 1) if name in NORMS_THE_BATCH else degrees
    emitted = random_program(tested.graph, tp, seed, dp=dp, num_microbatches=num_microbatches)
    lowest = torch.float32 if name in AMPLIFIES_FLOAT32 else None
    assert_same(sharded(emitted, tested.model, tested.batch), tested.truth(), lowest)


@pytest.mark.parametrize("name", TINY)
def test_families_under_random_placements(name):
    for seed, degrees in enumerate(DEGREES):
        _check(name, seed, degrees)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
@pytest.mark.parametrize("name", TINY)
def test_families_under_more_random_placements(name, seed):
    _check(name, seed, DEGREES[seed % len(DEGREES)])
