"""Steps of published runs wait for the slowest device where the profile says how they differ."""

from __future__ import annotations

import math
from dataclasses import astuple, replace

import pytest

from autoplan.validation.step.step_time import step_of
from hardware_profiles.load import load
from tests.unit.memory_setups import FSDP2, LLAMA3_8B, MEGATRON, setup

A100 = load("dgx-a100-80g")
JITTERY = replace(A100, step_jitter=0.02)
RUNS = [
    setup(LLAMA3_8B, FSDP2, dp=2, zero=3),
    setup(LLAMA3_8B, MEGATRON, pp=2, microbatches=4),
]


@pytest.mark.parametrize("run", RUNS)
def test_two_devices_wait_by_the_closed_form(run) -> None:
    """The larger one of two standard normals is 1 / sqrt(pi) on average."""
    even, uneven = step_of(run, A100), step_of(run, JITTERY)
    assert uneven.step_s == pytest.approx(even.step_s * (1 + 0.02 / math.sqrt(math.pi)))
    assert uneven.step_s == pytest.approx(sum(astuple(uneven)[1:]))
    assert uneven.bubble_s - even.bubble_s == pytest.approx(uneven.step_s - even.step_s)


def test_more_devices_wait_longer() -> None:
    runs = [setup(LLAMA3_8B, FSDP2, dp=dp, zero=3) for dp in (8, 64, 512)]
    lost = [step_of(run, JITTERY).step_s / step_of(run, A100).step_s for run in runs]
    assert 1.02 < lost[0] < lost[1] < lost[2] < 1 + 0.02 * math.sqrt(2 * math.log(512))


def test_one_device_and_one_layer_wait_for_none() -> None:
    alone = setup(LLAMA3_8B, FSDP2)
    layer = replace(RUNS[0], layer_only=True)
    for run in (alone, layer):
        assert step_of(run, JITTERY).step_s == pytest.approx(step_of(run, A100).step_s)
