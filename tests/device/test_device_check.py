"""The check of predictions on one GPU, run on a device that keeps to closed forms."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.plan import Plan
from benchmarks.device_check.check import DoesNotFitError, StepFigures, check
from benchmarks.device_check.largest import largest_that_fits
from benchmarks.device_check.on_gpu import STEPS, Gpu, case_of, roomy
from benchmarks.device_check.settings import LARGEST, SETTINGS, Setting
from benchmarks.device_check.table import lines
from hardware_profiles.load import load_facts
from hardware_profiles.write import save
from tests.device.training import alone
from tests.unit.sample_plan import PLAN

HELD, EACH, FREE = 1000, 10, 3000
STEP_S = 0.5
PROFILES = ("shipped", "measured")
OFF = {"shipped": (1.2, 0.9), "measured": (1.05, 1.02)}
"""Times and bytes that the profiles predict, of the true ones."""


class FakeGpu:
    """Bytes grow by samples; its clock goes on by a minute whenever it trains."""

    def __init__(self) -> None:
        self.clock_s = 0.0
        self.tried: list[int] = []

    def now_s(self) -> float:
        return self.clock_s

    def free_bytes(self) -> int:
        return FREE

    def planned(self, setting: Setting, profile: str) -> Plan:
        times, of_bytes = OFF[profile]
        (stage, *_) = PLAN.estimate.stages
        nbytes = round(of_bytes * (HELD + EACH * setting.samples))
        nothing = dict.fromkeys((field.name for field in fields(stage.memory)), 0)
        memory = replace(stage.memory, **{**nothing, "activations": nbytes})
        estimate = replace(
            PLAN.estimate, step_s=times * STEP_S, stages=(replace(stage, memory=memory),)
        )
        return replace(PLAN, estimate=estimate)

    def trained(self, setting: Setting, plan: Plan) -> StepFigures:
        self.clock_s += 60
        self.tried.append(setting.samples)
        nbytes = HELD + EACH * setting.samples
        if nbytes > FREE:
            raise DoesNotFitError
        return StepFigures(step_s=STEP_S, peak_bytes=nbytes)


def checked(limit_s: float = 1e9, number: int = 3):
    device = FakeGpu()
    chosen = SETTINGS[:number]
    told: list[str] = []
    found = check(device, PROFILES, chosen, LARGEST[:1], limit_s=limit_s, tell=told.append)
    return device, found, told


def test_errors_are_those_of_each_profile():
    _, found, told = checked()
    first = found.rows[0]
    assert [first.time_error(n) for n in (0, 1)] == pytest.approx([0.2, 0.05])
    assert [first.bytes_error(n) for n in (0, 1)] == pytest.approx([-0.1, 0.02], abs=1e-3)
    assert not found.is_met(0)
    assert found.is_met(1)
    assert told[0] == SETTINGS[0].name


def test_what_is_compiled_is_not_scored():
    _, found, _ = checked()
    assert found.rows[2].setting.compiled
    assert found.rows[2].time_error(1) is None


def test_the_largest_batch_is_found_beside_those_predicted():
    _, found, _ = checked()
    (largest,) = found.largest
    true = (FREE - HELD) // EACH
    assert (largest.fits, largest.does_not) == (true, true + 1)
    shipped, measured = largest.predicted
    assert shipped == pytest.approx((FREE / 0.9 - HELD) / EACH, abs=1)
    assert measured == pytest.approx((FREE / 1.02 - HELD) / EACH, abs=1)


def test_nothing_is_begun_when_time_is_up():
    device, found, _ = checked(limit_s=100)
    assert len(found.rows) == 2
    assert found.largest == ()
    assert found.left == (SETTINGS[2].name, f"largest batch of {LARGEST[0].name}")
    assert device.clock_s == 120


def test_the_outcome_is_a_table_and_words():
    _, found, _ = checked(limit_s=100)
    text = "\n".join(lines(found))
    assert "| gpt2, 16 x 1024 | 500.0 | 0.00 | 600 (+20.0%) |" in text
    assert "Not reached in time: gpt2, 16 x 1024, compiled; largest batch of" in text


@given(true=st.integers(0, 3000), near=st.integers(1, 3000))
@settings(deadline=None, max_examples=200)
def test_bounds_of_the_largest_batch_are_neighbours_where_tries_are_enough(true, near):
    low, high = largest_that_fits(lambda number: number <= true, near, 40)
    assert (low, high) == (true, true + 1)


@given(true=st.integers(0, 3000), near=st.integers(1, 3000), tries=st.integers(1, 9))
@settings(deadline=None, max_examples=200)
def test_bounds_hold_whatever_the_tries(true, near, tries):
    asked: list[int] = []

    def fits(number: int) -> bool:
        asked.append(number)
        return number <= true

    low, high = largest_that_fits(fits, near, tries)
    assert low <= true
    assert not high or true < high
    assert len(asked) == len(set(asked)) <= tries


def test_a_roomy_profile_reads_back(tmp_path):
    facts = load_facts("dgx-h100")
    made = roomy(facts)
    assert made.device.memory_bytes.value == 4 * facts.device.memory_bytes.value
    save(made, tmp_path / "roomy.toml")
    assert load_facts(str(tmp_path / "roomy.toml")) == made


def test_the_real_way_on_a_cpu(tmp_path):
    """But for the clock of a GPU: a small model is planned, trained and counted.

    At the end of the backward there are weights, gradients and two moments in float32; before,
    weights in bf16 at most besides, what layers keep (Korthikanti et al. 2022, section 4.1), and
    logits, their logarithms and gradients in float32.
    """
    small = {"n_embd": 32, "n_head": 2, "n_layer": 2, "n_positions": 16, "vocab_size": 64}
    setting = Setting(model="gpt2", samples=2, seq_len=16, fields=small)
    device = torch.device("cpu")
    with alone("gloo", device, tmp_path):
        gpu = Gpu(tmp_path, device)
        plan = gpu.planned(setting, "dgx-h100")
        assert plan.job.precision == "bf16"
        started_s = gpu.now_s()
        found = gpu.trained(setting, plan)
        all_s = gpu.now_s() - started_s
    assert found.step_s * (STEPS + 1) / 2 < all_s
    elements = sum(parameter.numel() for parameter in case_of(setting).model.parameters())
    tokens, width, layers, heads, vocab = 2 * 16, 32, 2, 2, 64
    activations = layers * tokens * width * (34 + 5 * heads * 16 / width) + 3 * 4 * tokens * vocab
    assert 16 * elements < found.peak_bytes < 18 * elements + activations
