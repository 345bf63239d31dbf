"""A measured profile beside its base, the machine it names, and where it is kept."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import date

import pytest
from rich.console import Console

from autoplan import api, launch
from autoplan.profiler import cache
from autoplan.profiler.machine import differences, fingerprint, link_in, this_machine
from autoplan.profiler.measure import measure
from autoplan.profiler.probes import Compute, Measured, Measurements, Workspace
from autoplan.profiler.profile import profiled
from autoplan.profiler.schedule import Setting, probes_for
from autoplan.report.profile import print_profile
from hardware_profiles.load import digest, load, load_facts
from hardware_profiles.schema import MachineFacts, ProfileFacts
from hardware_profiles.spec import MachineSpec
from tests.unit.fake_bench import FakeBench

BASE, CLUSTER = load_facts("cpu-gloo"), load("cpu-gloo")
SETTING = Setting(is_gpu=False, world=2, per_node=2, cores=2, threads=1, quick=True)
HERE = MachineSpec(
    device="A processor", devices=1, cores=2, threads=1, memory_bytes=8 * 2**30, torch="2.13.0"
)


def made(found: Measurements):
    return profiled(found, SETTING, HERE, BASE, CLUSTER, date(2026, 11, 30))


def interrupted_after(number: int) -> Measurements:
    asked = []

    def stops() -> bool:
        asked.append(0)
        return len(asked) > number

    return measure(
        probes_for(SETTING), FakeBench(truth=CLUSTER), slice_s=0.01, limit_s=1e9, rounds=3,
        progress=lambda _, __: None, wants_to_stop=stops,
    )  # fmt: skip


def test_an_interrupted_profile_keeps_the_bases_values_under_the_bases_name():
    found = made(interrupted_after(4))
    facts = found.facts
    assert found.interrupted
    assert facts.device.workspace_bytes.provenance == "measured"
    assert facts.busy_share["2"].provenance == "measured"
    for kept, base in (
        (facts.device.launch_s, BASE.device.launch_s),
        (facts.intra_node.efficiency, BASE.intra_node.efficiency),
        (facts.overlap_efficiency, BASE.overlap_efficiency),
    ):
        assert (kept.value, kept.provenance) == (base.value, base.provenance)
        assert kept.source == f"cpu-gloo: {base.source}"
    lacking = {left.name: left.reason for left in found.refused}
    assert lacking["operators bound by memory"] == "0 measurements, 5 are needed"
    assert set(lacking.values()) >= {"interrupted"}


def test_nothing_measured_is_no_profile():
    with pytest.raises(ValueError, match="nothing was measured"):
        made(interrupted_after(0))


def test_what_the_cost_model_does_not_describe_is_refused():
    """Times by turns of a microsecond and a second, whatever is done."""
    probes = [probe for probe in probes_for(SETTING) if isinstance(probe, Compute)]
    rows = [Measured(probe=Workspace(), value=1e8)]
    rows += [Measured(probe=p, value=(1e-6, 1.0)[n % 2]) for n, p in enumerate(probes)]
    found = made(Measurements(measured=tuple(rows), refused=()))
    assert any("the cost model is" in left.reason for left in found.refused)
    assert found.facts.device.launch_s.value == BASE.device.launch_s.value
    assert found.facts.device.peak_flops.keys() == BASE.device.peak_flops.keys()
    assert found.facts.device.workspace_bytes.value == 1e8


def test_the_report_names_values_errors_and_what_is_missing():
    found = replace(made(interrupted_after(4)), idle=0.5)
    text = io.StringIO()
    print_profile(found, Console(file=text, width=200))
    shown = text.getvalue()
    assert "2 processes on 2 cores of A processor, measured 2026-11-30" in shown
    assert "the others are those of cpu-gloo" in shown
    assert "Other work left 50 % of a core's time" in shown
    assert "busy_share.2" in shown
    assert "more: interrupted" in shown


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, ""),
        ({"cores": 64}, "cores 64, here 2"),
        ({"torch": "2.14.0", "threads": 4}, "threads 4, here 1; torch 2.14.0, here 2.13.0"),
        ({"device": "Another"}, "device Another, here A processor"),
        ({"memory_bytes": int(8.1 * 2**30)}, ""),
        ({"memory_bytes": 16 * 2**30}, "memory 16.0 GiB, here 8.0 GiB"),
    ],
)
def test_another_machine_is_told_in_words(changed, words):
    other = replace(HERE, **changed)
    assert differences(other, HERE) == words


def test_fingerprints_follow_the_machine():
    assert fingerprint(HERE) == fingerprint(replace(HERE, memory_bytes=8 * 2**30 + 4096))
    others = [replace(HERE, cores=4), replace(HERE, torch="2.14.0"), replace(HERE, device="B")]
    assert len({fingerprint(machine) for machine in (HERE, *others)}) == 4


def test_topologies_of_gpus():
    header = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\n"
    assert link_in(header + "GPU0\t X \tNV18\tPXB\t0-55\nGPU1\tNV18\t X \tSYS\t0-55\n") == "nvlink"
    assert link_in(header + "GPU0\t X \tPHB\tSYS\t0-31\n") == "pcie"
    assert link_in("No devices were found\n") is None


def test_a_profile_is_kept_for_its_machine_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.kept(HERE, 1, 2) is None
    path = cache.keep(made(interrupted_after(4)).facts, HERE)
    assert path == tmp_path / "autoplan" / "profiles" / f"{fingerprint(HERE)}.toml"
    assert cache.kept(HERE, 1, 2) == path
    assert cache.kept(HERE, 1, 3) is None
    assert cache.kept(HERE, 2, 1) is None
    assert cache.kept(replace(HERE, cores=4), 1, 2) is None
    path.write_text(path.read_text().replace("value", "valeu"))
    assert cache.kept(HERE, 1, 2) is None


def with_machine(machine: MachineSpec) -> ProfileFacts:
    facts = BASE.model_copy(update={"name": "mine"})
    told = MachineFacts(
        device=machine.device, devices=machine.devices, cores=machine.cores,
        threads=machine.threads, memory_bytes=machine.memory_bytes, torch=machine.torch,
        measured_on="2026-11-30", digest=digest(facts),
    )  # fmt: skip
    return facts.model_copy(update={"machine": told})


def test_compile_takes_the_machines_profile_and_tells_of_another_machines(tmp_path, monkeypatch):
    import torch

    from hardware_profiles.write import save

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    options = {"global_batch": 4, "loss_fn": torch.nn.functional.mse_loss, "precision": "fp32"}
    batch = (torch.randn(4, 4), torch.randn(4, 1))
    shipped = api.compile(model, batch, **options)
    assert shipped.plan.job.cluster == "cpu-gloo"
    kept = cache.keep(with_machine(this_machine()), this_machine())
    assert launch.local_cluster(1, 1) == str(kept)
    mine = api.compile(model, batch, **options)
    assert (mine.plan.job.cluster, mine.plan.warnings) == (str(kept), ())
    foreign = tmp_path / "foreign.toml"
    save(with_machine(replace(this_machine(), cores=4096)), foreign)
    (warning,) = api.compile(model, batch, cluster=str(foreign), **options).plan.warnings
    assert f"{foreign} was measured on another machine (cores 4096, here " in warning
    planned = api.plan(model, batch, cluster=str(foreign), **options)
    assert planned.warnings == ()
