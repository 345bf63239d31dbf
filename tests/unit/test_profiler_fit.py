"""On a clock that moves by the cost models' own forms, fits give back the constants put in."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from autoplan.profiler.measure import measure
from autoplan.profiler.probes import Measurements
from autoplan.profiler.profile import Profiled, profiled
from autoplan.profiler.schedule import Setting, probes_for
from cost_models.collectives import collective_s
from cost_models.compute import kernel_s
from cost_models.work import FlashAttention, Gemm, Streaming
from hardware_profiles.load import load, load_facts, parse
from hardware_profiles.spec import ClusterSpec, LinkSpec, MachineSpec
from hardware_profiles.write import to_toml
from tests.unit.fake_bench import FakeBench

TODAY = date(2026, 11, 30)
CPU = Setting(is_gpu=False, world=4, per_node=4, cores=2, threads=1, quick=True)
GPU = Setting(is_gpu=True, world=8, per_node=8, cores=96, threads=1, quick=True)
NEAR = 0.02


def machine(setting: Setting, memory_bytes: int) -> MachineSpec:
    return MachineSpec(
        device="fake", devices=8 if setting.is_gpu else 1, cores=setting.cores,
        threads=setting.threads, memory_bytes=memory_bytes, torch="2.13.0",
    )  # fmt: skip


def cpu_truth() -> ClusterSpec:
    base = load("cpu-gloo")
    peaks = {"float32": 120e9, "float64": 55e9, "bfloat16": 700e9, "float16": 140e9}
    device = replace(
        base.device, peak_flops=peaks, matmul_efficiency=1.0, memory_bytes_per_s=14e9,
        memory_efficiency=0.7, optimizer_efficiency=1.0, launch_s=7e-6, optimizer_tensor_s=80e-6,
        optimizer_piece_s=500e-6, operand_bytes_per_s=15e9, piece_read_s=200e-6,
        split_gradient_s=150e-6, message_host_s=40e-6, gather_host_s=1.2e-3,
        gather_copy_bytes_per_s=3e9, reduce_host_s=0.7e-3, reduce_copy_bytes_per_s=2e9,
        attention_forward_efficiency=0.4, attention_backward_efficiency=0.25,
        workspace_bytes=300 * 2**20,
    )  # fmt: skip
    link = LinkSpec(
        name="loopback", bytes_per_s=3e9, efficiency=0.4, p2p_efficiency=0.9, latency_s=30e-6,
        launch_s=110e-6, p2p_launch_s=50e-6, group_share={2: 1.0, 4: 0.7},
        kind_share={"reduce_scatter": 0.5},
    )  # fmt: skip
    return replace(
        base, device=device, intra_node=link, overlap_efficiency=0.3, busy_share={2: 0.9, 4: 0.45}
    )


def measured_on(bench: FakeBench, setting: Setting) -> Measurements:
    return measure(
        probes_for(setting), bench, slice_s=0.01, limit_s=1e9, rounds=3, progress=lambda _, __: None
    )


def made(base: str, setting: Setting, found: Measurements, memory_bytes: int) -> Profiled:
    return profiled(
        found, setting, machine(setting, memory_bytes), load_facts(base), load(base), TODAY
    )


@pytest.fixture(scope="module")
def cpu() -> tuple[ClusterSpec, Profiled, ClusterSpec]:
    """The truth, what was made of it, and that as it reads back from its file."""
    truth = cpu_truth()
    bench = FakeBench(truth=truth, cores={2: 1.0, 4: 0.5})
    found = made("cpu-gloo", CPU, measured_on(bench, CPU), 16 * 2**30)
    return truth, found, parse(to_toml(found.facts), where="mine.toml")


def test_a_cpu_gets_its_constants_back(cpu):
    truth, _, found = cpu
    for dtype, rate in truth.device.peak_flops.items():
        achieved = found.device.peak_flops[dtype] * found.device.matmul_efficiency
        assert achieved == pytest.approx(rate, rel=NEAR), dtype
    streamed = found.device.memory_bytes_per_s * found.device.memory_efficiency
    assert streamed == pytest.approx(9.8e9, rel=NEAR)
    stepped = found.device.memory_bytes_per_s * (found.device.optimizer_efficiency or 0)
    assert stepped == pytest.approx(14e9, rel=NEAR)
    assert found.device.optimizer_tensor_s == pytest.approx(80e-6, rel=1e-3)
    assert found.device.optimizer_piece_s == pytest.approx(500e-6, rel=1e-3)
    assert found.device.launch_s == pytest.approx(7e-6, rel=NEAR)
    assert found.device.operand_bytes_per_s == pytest.approx(15e9, rel=2 * NEAR)
    assert found.device.workspace_bytes == 300 * 2**20
    assert found.device.memory_bytes == 4 * 2**30
    assert found.gpus_per_node == 4


def test_what_the_host_takes_around_messages_is_found(cpu):
    truth, _, found = cpu
    share = truth.busy_share[2]  # two ranks measure it
    for name in (
        "piece_read_s", "split_gradient_s", "message_host_s", "gather_host_s", "reduce_host_s"
    ):  # fmt: skip
        value = getattr(truth.device, name) / share
        assert getattr(found.device, name) == pytest.approx(value, rel=1e-3), name
    for name in ("gather_copy_bytes_per_s", "reduce_copy_bytes_per_s"):
        value = getattr(truth.device, name) * share
        assert getattr(found.device, name) == pytest.approx(value, rel=2e-3), name


def test_what_ranks_take_from_each_other_and_hide_is_found(cpu):
    _, _, found = cpu
    assert found.busy_share == pytest.approx({2: 0.9, 4: 0.45}, rel=1e-3)
    assert found.overlap_efficiency == pytest.approx(0.3, rel=1e-3)


def test_a_link_gets_its_constants_back(cpu):
    _, _, found = cpu
    link = found.intra_node
    assert link.bytes_per_s * link.efficiency == pytest.approx(1.2e9, rel=NEAR)
    assert link.bytes_per_s * (link.p2p_efficiency or 0) == pytest.approx(2.7e9, rel=NEAR)
    assert link.launch_s == pytest.approx(110e-6, rel=NEAR)
    assert link.p2p_launch_s == pytest.approx(50e-6, rel=NEAR)
    assert link.latency_s == pytest.approx(30e-6, rel=NEAR)
    assert link.group_share == pytest.approx({2: 1.0, 4: 0.7}, rel=NEAR)
    assert link.kind_share["reduce_scatter"] == pytest.approx(0.5, rel=NEAR)
    assert link.kind_share["all_gather"] == pytest.approx(1.0, rel=NEAR)


def test_what_was_not_measured_is_predicted_as_well(cpu):
    truth, _, found = cpu
    works = (
        Gemm(m=77, n=900, k=333, dtype="float32", output_bytes=4),
        Gemm(m=600, n=700, k=800, dtype="bfloat16"),
        Streaming(bytes=3e6, kernels=5),
        FlashAttention(
            batch=3, heads=5, kv_heads=5, queries=200, keys=200, head_dim=48, value_dim=48,
            dtype="float32", causal=True, backward=True,
        ),
    )  # fmt: skip
    for work in works:
        expected = kernel_s(work, truth.device)
        assert kernel_s(work, found.device) == pytest.approx(expected, rel=NEAR)
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"):
        for nbytes in (1, 50_000, 2**24):
            args = (kind, nbytes, 2, 2)
            assert collective_s(*args, found) == pytest.approx(collective_s(*args, truth), rel=NEAR)


def test_all_that_costs_read_on_a_cpu_says_measured(cpu):
    _, found, cluster = cpu
    stays = {name for name, source in cluster.provenance.items() if source != "measured"}
    assert {name for name in stays if not name.startswith("inter_node.")} == {"max_nodes"}
    assert found.facts.max_nodes.source.startswith("cpu-gloo: ")
    source = found.facts.device.launch_s.source
    assert source.startswith("measured 2026-11-30, torch 2.13.0, 4 ranks: fitted to ")
    assert found.refused == ()
    assert max(errors.median for errors in found.errors) < NEAR


def test_a_gpu_keeps_its_data_sheet_and_gets_fractions():
    base = load("dgx-h100")
    device = replace(
        base.device, matmul_efficiency=0.7, memory_efficiency=0.85, launch_s=4e-6,
        sm_load_bytes_per_s=120e9, attention_forward_efficiency=0.66,
        attention_backward_efficiency=0.45, host_link_bytes_per_s=50e9,
    )  # fmt: skip
    link = replace(base.intra_node, efficiency=0.9, launch_s=60e-6, p2p_launch_s=30e-6)
    truth = replace(base, device=device, intra_node=link, overlap_efficiency=0.6)
    bench = FakeBench(truth=truth)
    found = made("dgx-h100", GPU, measured_on(bench, GPU), base.device.memory_bytes)
    cluster = parse(to_toml(found.facts), where="mine.toml")
    assert cluster.device.peak_flops == base.device.peak_flops
    assert cluster.provenance["device.peak_flops.bfloat16"] == "datasheet"
    for name in (
        "matmul_efficiency", "memory_efficiency", "launch_s", "sm_load_bytes_per_s",
        "attention_forward_efficiency", "attention_backward_efficiency",
    ):  # fmt: skip
        assert getattr(cluster.device, name) == pytest.approx(getattr(device, name), rel=0.05), name
    assert cluster.device.host_link_bytes_per_s == pytest.approx(25e9)
    assert cluster.overlap_efficiency == pytest.approx(0.6)
    assert cluster.busy_share == {}
    for kind in ("all_reduce", "all_to_all"):
        for nbytes in (2**13, 2**21, 2**28):
            args = (kind, nbytes, 8, 8)
            assert collective_s(*args, cluster) == pytest.approx(
                collective_s(*args, truth), rel=0.05
            )
