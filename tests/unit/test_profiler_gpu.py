"""The way of a GPU, with a driver and a bench that are stood in for."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from datetime import date
from types import SimpleNamespace

import pytest
import torch

from autoplan.errors import ProfileError
from autoplan.profiler import machine, run
from hardware_profiles.load import load, parse
from hardware_profiles.write import to_toml
from tests.unit.fake_bench import FakeBench

BASE = load("dgx-h100")
TOPOLOGY = "\tGPU0\tGPU1\nGPU0\t X \t{way}\nGPU1\t{way}\t X \n"


@pytest.fixture
def gpus(monkeypatch):
    """Two H100, joined by NVLink, in a node with four adapters."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _=0: "NVIDIA H100 80GB HBM3")
    properties = SimpleNamespace(total_memory=BASE.device.memory_bytes)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(run, "adapters", lambda: 4)
    topology(monkeypatch, "NV18")
    truth = replace(BASE, device=replace(BASE.device, memory_efficiency=0.8))
    monkeypatch.setattr(run, "TorchBench", lambda: FakeBench(truth=truth))
    monkeypatch.setattr(run, "_SLICES_S", {True: 1e-4})
    return monkeypatch


def topology(monkeypatch, way: str) -> None:
    told = SimpleNamespace(stdout=TOPOLOGY.format(way=way))
    monkeypatch.setattr(machine.subprocess, "run", lambda *_, **__: told)


def profile(base="dgx-h100"):
    shown = nullcontext(lambda _, __: None)
    return run.profile_machine(base, quick=True, show=lambda: shown, today=date(2026, 11, 30))


def test_a_gpu_alone_tells_its_own_values_and_not_its_links(gpus):
    found = profile()
    assert found is not None
    assert {left.name for left in found.refused} == {"messages between GPUs"}
    cluster = parse(to_toml(found.facts), where="mine.toml")
    assert cluster.machine is not None
    assert cluster.machine.device == "NVIDIA H100 80GB HBM3"
    assert (cluster.gpus_per_node, cluster.nics_per_node) == (2, 4)
    assert cluster.device.memory_efficiency == pytest.approx(0.8, rel=0.05)
    assert cluster.provenance["device.memory_efficiency"] == "measured"
    assert cluster.intra_node == BASE.intra_node
    assert cluster.provenance["intra_node.efficiency"] != "measured"
    assert cluster.description.startswith("2 x NVIDIA H100 80GB HBM3, measured ")


def test_ranks_of_torchrun_measure_the_links(gpus):
    for name in ("RANK", "LOCAL_RANK"):
        gpus.setenv(name, "0")
    gpus.setenv("WORLD_SIZE", "2")
    gpus.setenv("LOCAL_WORLD_SIZE", "2")
    found = profile()
    assert found is not None
    assert found.refused == ()
    cluster = parse(to_toml(found.facts), where="mine.toml")
    assert cluster.provenance["intra_node.efficiency"] == "measured"
    assert cluster.provenance["overlap_efficiency"] == "measured"
    assert cluster.inter_node == BASE.inter_node


def test_a_base_with_another_link_is_refused(gpus):
    topology(gpus, "PHB")
    with pytest.raises(ProfileError, match="joined by pcie, those of dgx-h100 by nvlink"):
        profile()
