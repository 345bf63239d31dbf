"""Twins of all models of the zoo train as on one device, under three plans or more."""

import pytest

from autoplan.zoo.presets import PRESETS
from tests.families import twin_key
from tests.parity.zoo_twins import run_twin

TWINS = {twin_key(name, **PRESETS[name].dropout): name for name in reversed(PRESETS)}
"""One model of each twin, the first of the zoo."""


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TWINS.values(), key=list(PRESETS).index))
def test_twins_equal_one_device(name):
    cells = run_twin(name)
    assert all(cell.ok for cell in cells.values() if not cell.refused), cells
    assert sum(cell.ok for cell in cells.values()) >= 3, cells
