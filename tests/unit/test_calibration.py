"""Corrections of a profile: constants come back from measurements that were made with them."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import autoplan
from autoplan.calibration import calibrate
from autoplan.calibration.calibrate import calibrate_plan, profile_of
from autoplan.calibration.corrected import corrected
from autoplan.calibration.factors import Factors, Kind, factors_of, predicted_optimizer_s
from autoplan.errors import PlanError, ProfileError
from autoplan.measurement import RankMeasurement, Spread, StepMeasurement
from autoplan.plan import Plan
from hardware_profiles.load import digest, load_facts, parse_facts
from hardware_profiles.schema import MachineFacts, facts_of
from hardware_profiles.write import save, to_toml

WIDTH, SAMPLES = 64, 8
TODAY = date(2026, 11, 30)
NOTHING = Factors(factors={}, refused={})
factors = st.floats(0.1, 10.0)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(self.down(functional.gelu(self.up(x))), y)


INPUTS = {"x": torch.zeros(2, WIDTH), "y": torch.zeros(2, WIDTH)}


def plan_on(cluster: Path | str, **pins: int | str) -> Plan:
    return autoplan.plan(
        Net(), INPUTS, cluster=str(cluster), gpus_per_node=2, global_batch=SAMPLES,
        precision="fp32", pins=pins,
    )  # fmt: skip


@pytest.fixture(scope="module")
def by_dp() -> Plan:
    return plan_on("cpu-gloo", dp=2, tp=1, pp=1, zero=0)


def as_if(plan: Plan, *by: tuple[float, float, float]) -> StepMeasurement:
    """Each rank's compute, optimizer and waits so many times as long as predicted."""
    estimate = plan.estimate
    ranks = []
    for number, (compute, optimizer, messages) in enumerate(by):
        optimizer_s = optimizer * predicted_optimizer_s(plan, 0)
        waiting_s = messages * estimate.exposed_comm_s
        busy_s = compute * estimate.stages[0].compute_s + optimizer_s + waiting_s
        ranks.append(
            RankMeasurement(
                rank=number, pp_rank=0, busy_s=busy_s, optimizer_s=optimizer_s, peak_bytes=1,
                held_bytes={}, forward_s=0.0, backward_s=0.0, waiting_s=waiting_s,
            )
        )  # fmt: skip
    longest = max(rank.busy_s for rank in ranks)
    spread = Spread(median_s=longest, low_s=longest, high_s=longest)
    return StepMeasurement(steps=3, step_s=spread, ranks=tuple(ranks))


@given(compute=factors, optimizer=factors, messages=factors)
@settings(deadline=None, max_examples=30)
def test_factors_come_back(by_dp, compute, optimizer, messages):
    found = factors_of(by_dp, as_if(by_dp, *((compute, optimizer, messages),) * 2))
    expected = {"compute": compute, "optimizer": optimizer, "messages": messages}
    assert found.factors == pytest.approx(expected)


def test_one_rank_of_three_that_was_held_up_does_not_count(by_dp):
    found = factors_of(by_dp, as_if(by_dp, (1.5, 2, 1), (19, 19, 19), (1.5, 2, 1)))
    assert found.factors == pytest.approx({"compute": 1.5, "optimizer": 2, "messages": 1})


def test_what_is_no_correction_is_refused(by_dp):
    found = factors_of(by_dp, as_if(by_dp, (1, 30, 1)))
    assert set(found.factors) == {"compute", "messages"}
    assert "30 times the prediction" in found.refused["optimizer"]


def test_waits_of_a_pipeline_tell_nothing_of_links(by_dp):
    piped = replace(by_dp, mesh=replace(by_dp.mesh, pp=2, dp=1))
    assert "wait for each other" in factors_of(piped, as_if(by_dp, (1, 1, 5))).refused["messages"]


def test_where_waits_are_not_told_what_sends_nothing_tells_compute(by_dp):
    """As on GPUs, whose steps alone are timed."""
    found = as_if(by_dp, (2.0, 1.0, 0.0))
    silent = replace(found, ranks=tuple(replace(rank, waiting_s=None) for rank in found.ranks))
    assert set(factors_of(by_dp, silent).factors) == {"optimizer"}
    alone = replace(by_dp, estimate=replace(by_dp.estimate, comm_s={}))
    assert factors_of(alone, silent).factors["compute"] == pytest.approx(2.0)


@given(compute=factors, optimizer=factors, messages=factors)
@settings(deadline=None, max_examples=30)
def test_corrected_rates_are_those_of_before_over_the_factors(compute, optimizer, messages):
    base = load_facts("cpu-gloo")
    by: dict[Kind, float] = {
        "compute": compute,
        "optimizer": optimizer,
        "messages": messages,
    }
    made = corrected(base, Factors(factors=by, refused={}), "calibrated")
    old, new = base.device, made.device
    for dtype, peak in old.peak_flops.items():
        rate = new.peak_flops[dtype].value * new.matmul_efficiency.value
        assert rate == pytest.approx(peak.value * old.matmul_efficiency.value / compute, rel=1e-4)
    memory = old.memory_bytes_per_s.value * old.memory_efficiency.value
    now = new.memory_bytes_per_s.value
    assert now * new.memory_efficiency.value == pytest.approx(memory / compute, rel=1e-4)
    assert new.optimizer_efficiency is not None
    assert old.optimizer_efficiency is not None
    stepped = old.memory_bytes_per_s.value * old.optimizer_efficiency.value
    assert now * new.optimizer_efficiency.value == pytest.approx(stepped / optimizer, rel=1e-4)
    assert new.launch_s.value == pytest.approx(compute * old.launch_s.value, rel=1e-4)
    link, was = made.intra_node, base.intra_node
    rate = link.bytes_per_s.value * link.efficiency.value
    expected = was.bytes_per_s.value * was.efficiency.value / messages
    assert rate == pytest.approx(expected, rel=1e-4)
    assert link.latency_s.value == pytest.approx(messages * was.latency_s.value, rel=1e-4)
    before = dict(facts_of(base))
    changed = {name for name, fact in facts_of(made) if fact != before.get(name)}
    told = {name for name, fact in facts_of(made) if fact.source.startswith("calibrated: ")}
    assert changed <= told | {"device.optimizer_efficiency"}
    assert parse_facts(to_toml(made), where="x.toml") == made


def test_a_data_sheet_keeps_its_peaks():
    base = load_facts("dgx-h100")
    made = corrected(base, Factors(factors={"compute": 0.1}, refused={}), "calibrated")
    assert made.device.peak_flops == base.device.peak_flops
    assert made.device.matmul_efficiency.value == 1.0


def test_without_factors_nothing_changes():
    assert corrected(load_facts("cpu-gloo"), NOTHING, "calibrated") == load_facts("cpu-gloo")


def test_planning_again_is_not_worse_on_the_machine_that_was_measured(by_dp, tmp_path, monkeypatch):
    """The machine is a profile by itself: messages take 8 times as long as in the plan's."""
    truth = corrected(
        load_facts("cpu-gloo"), Factors(factors={"messages": 8.0}, refused={}), "truth"
    )
    save(truth, tmp_path / "truth.toml")
    first = by_dp
    real = plan_on(tmp_path / "truth.toml", **pins_of(first)).estimate
    ratio = real.exposed_comm_s / first.estimate.exposed_comm_s
    monkeypatch.setattr(calibrate, "measure_plan", lambda *_: as_if(first, (1.0, 1.0, ratio)))
    case = graph = None
    found = calibrate_plan(first, case, graph, steps=3, today=TODAY)  # pyright: ignore
    save(found.profile, tmp_path / "mine.toml")
    again = plan_on(tmp_path / "mine.toml", pp=1)
    after = plan_on(tmp_path / "truth.toml", **pins_of(again)).estimate
    assert after.step_s <= real.step_s
    assert found.factors.factors["messages"] == pytest.approx(8.0, rel=0.01)
    assert found.profile.intra_node.latency_s.source.startswith(
        "calibrated 2026-11-30 on Net, pp 1"
    )


def test_a_profile_that_changed_since_is_refused(by_dp):
    with pytest.raises(PlanError, match="cpu-gloo changed since the plan was made"):
        profile_of(replace(by_dp, profile_digest="0" * 64))


def test_a_profile_of_another_machine_is_refused(tmp_path):
    facts = load_facts("cpu-gloo")
    machine = MachineFacts(
        device="an abacus", devices=1, cores=4096, threads=1, memory_bytes=2**30, torch="2.13.0",
        measured_on="2026-11-30", digest=digest(facts),
    )  # fmt: skip
    save(facts.model_copy(update={"machine": machine}), tmp_path / "other.toml")
    plan = plan_on(tmp_path / "other.toml", pp=1, dp=2)
    with pytest.raises(ProfileError, match=r"measured on another machine \(device an abacus, here"):
        profile_of(plan)


def pins_of(plan: Plan) -> dict[str, int | str]:
    mesh = plan.mesh
    return {
        "pp": mesh.pp, "dp": mesh.dp, "tp": mesh.tp, "zero": plan.zero,
        "microbatch": plan.microbatch,
    }  # fmt: skip
