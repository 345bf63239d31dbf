"""What the host takes around messages shows where a profile states it, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.search.conversion_costs import ConversionPricer
from autoplan.search.pipeline.configs import Config
from autoplan.search.pipeline.loads import Unit
from autoplan.search.pipeline.weight_messages import WeightMessages
from cost_models.collectives import collective_s
from cost_models.gemm import gemm_bytes, gemm_s
from cost_models.work import Gemm
from hardware_profiles.load import load
from hardware_profiles.spec import ClusterSpec

ELEMENTS = 1_000_000
UNIT = Unit(trained_elements=ELEMENTS, frozen_elements=0.0, count=1)
CONFIG = Config(
    pp=1, dp=2, tp=1, zero=3, replicas=1, microbatch=1, num_microbatches=2,
    schedule=None, stages_per_rank=1, outermost="pp",
)  # fmt: skip


HOST_WORK = (
    "operand_bytes_per_s", "piece_read_s", "split_gradient_s", "message_host_s", "gather_host_s",
    "gather_copy_bytes_per_s", "reduce_host_s", "reduce_copy_bytes_per_s",
)  # fmt: skip


def cluster(**values: float) -> ClusterSpec:
    """One whose host takes no more than that."""
    base = load("cpu-gloo")
    nothing: dict[str, float | None] = dict.fromkeys(HOST_WORK)
    return replace(base, device=replace(base.device, **(nothing | values)))


def messages(on: ClusterSpec) -> WeightMessages:
    return WeightMessages(CONFIG, "fp32", 2, on)


def test_units_take_the_host_some_seconds_and_as_long_as_they_are_large():
    plain, busy = (
        messages(cluster(**values))
        for values in (
            {},
            {
                "gather_host_s": 1e-3, "gather_copy_bytes_per_s": 2e9,
                "reduce_host_s": 3e-3, "reduce_copy_bytes_per_s": 1e9,
            },
        )
    )  # fmt: skip
    nbytes = 4 * ELEMENTS
    assert busy.gather_s(UNIT) - plain.gather_s(UNIT) == pytest.approx(1e-3 + nbytes / 2e9)
    assert busy.scatter_s(UNIT) - plain.scatter_s(UNIT) == pytest.approx(3e-3 + nbytes / 1e9)
    assert plain.gather_s(UNIT) == collective_s("all_gather", nbytes, 2, 2, load("cpu-gloo"))


def test_each_message_of_a_program_takes_the_host_as_long():
    plain, busy = (
        ConversionPricer(tp=2, cluster=on, ranks_per_node=2)
        for on in (cluster(), cluster(message_host_s=5e-5))
    )
    for motion in ("all_reduce", "all_gather"):
        assert busy.motion_s(motion, 4096) - plain.motion_s(motion, 4096) == pytest.approx(5e-5)
    assert busy.motion_s("slice", 4096) == 0.0


def test_a_core_takes_operands_in_before_it_multiplies():
    product = Gemm(m=32, n=1024, k=1024, dtype="float32", output_bytes=4)
    plain, packing = cluster(), cluster(operand_bytes_per_s=8e9)
    rate = plain.device.peak_flops["float32"] * plain.device.matmul_efficiency
    assert gemm_s(product, packing.device) == pytest.approx(
        product.flops / rate + gemm_bytes(product) / 8e9
    )
    assert gemm_s(product, plain.device) == pytest.approx(product.flops / rate)
