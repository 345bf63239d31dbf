"""Random modules equal one device under every mesh, or are refused with the line."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings

from autoplan.errors import UnsupportedModelError
from autoplan.trace.capture import capture
from tests.parity.choose import random_program
from tests.parity.models import initialise
from tests.parity.random_models import LENGTH, WIDTH, RandomModel, Recipe, recipes
from tests.parity.simulate import assert_same, one_device, sharded

BATCH = 4
MESHES = ((1, 1, 1), (2, 1, 1), (4, 1, 1), (1, 2, 1), (2, 2, 2))
"""Degrees of tp, dp, and microbatches."""
LINE = re.compile(r"random_models\.py:\d+")


def _names_the_line(error: UnsupportedModelError, *, may_refuse: bool = True) -> None:
    assert may_refuse, error
    assert LINE.search(str(error)), error


def check(recipe: Recipe) -> int:
    """Compares a module under each mesh; how many of them ran."""
    model = initialise(RandomModel(recipe), torch.float64)
    batch = {name: torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64) for name in "xy"}
    try:
        graph = capture(model, batch).at_batch(BATCH)
    except UnsupportedModelError as error:
        _names_the_line(error)
        return 0
    truth = one_device(model, lambda: model(**batch))
    ran = 0
    for tp, dp, microbatches in MESHES:
        try:
            emitted = random_program(graph, tp, tp + dp, dp=dp, num_microbatches=microbatches)
        except UnsupportedModelError as error:
            _names_the_line(error, may_refuse=dp * microbatches > 1)
            continue
        assert_same(sharded(emitted, model, batch), truth)
        ran += 1
    return ran


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(recipe=recipes())
def test_random_modules_equal_one_device(recipe):
    check(recipe)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(4))
def test_more_random_modules(start):
    @seed(start)
    @settings(
        deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow], database=None
    )
    @given(recipe=recipes())
    def run(recipe):
        check(recipe)

    run()
