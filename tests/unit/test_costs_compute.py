"""Roofline, streaming kernels and overlap against closed forms."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.compute import kernel_s
from cost_models.overlap import exposed_s
from cost_models.peaks import peak_flops_per_s
from cost_models.work import Contraction, Streaming
from hardware_profiles.load import load
from hardware_profiles.spec import DeviceSpec

DEVICE = DeviceSpec(
    name="toy",
    peak_flops={"float32": 100.0, "bfloat16": 1000.0},
    matmul_efficiency=0.5,
    memory_bytes=1000,
    memory_bytes_per_s=80.0,
    memory_efficiency=0.5,
    launch_s=2.0,
    workspace_bytes=0,
)

contractions = st.builds(
    Contraction,
    flops=st.floats(0, 1e15),
    bytes=st.floats(0, 1e12),
    dtype=st.sampled_from(["bfloat16", "float32", "float64"]),
)


@pytest.mark.parametrize(
    ("dtype", "flops", "nbytes", "seconds"),
    [
        ("bfloat16", 5000.0, 40.0, 10.0 + 2.0),
        ("float32", 500.0, 40.0, 10.0 + 2.0),
        ("bfloat16", 50.0, 400.0, 10.0 + 2.0),
        ("float64", 250.0, 40.0, 10.0 + 2.0),
    ],
)
def test_products_of_unknown_shape_take_their_roofline(dtype, flops, nbytes, seconds):
    assert kernel_s(Contraction(flops=flops, bytes=nbytes, dtype=dtype), DEVICE) == seconds


def test_peak_of_a_dtype_that_is_not_listed():
    assert peak_flops_per_s("float16", DEVICE) == 100.0
    assert peak_flops_per_s("tf32", DEVICE) == 100.0
    assert peak_flops_per_s("float64", DEVICE) == 50.0


@settings(deadline=None, max_examples=100)
@given(contractions, st.floats(1, 3))
def test_more_work_never_takes_less_time(work, factor):
    more = replace(work, flops=work.flops * factor, bytes=work.bytes * factor)
    assert kernel_s(work, DEVICE) <= kernel_s(more, DEVICE)


def test_streaming_kernels_cost_their_bytes_and_starts():
    assert kernel_s(Streaming(bytes=400.0), DEVICE) == 10.0 + 2.0
    assert kernel_s(Streaming(bytes=400.0, kernels=3), DEVICE) == 10.0 + 6.0
    assert kernel_s(Streaming(bytes=0.0, kernels=0), DEVICE) == 0.0


@pytest.mark.parametrize(
    ("cluster", "megabytes", "seconds"),
    [
        ("dgx-a100-80g", 201.3, 112e-6),
        ("dgx-a100-80g", 169.9, 96.5e-6),
        ("dgx-h100", 201.3, 62e-6),
        ("dgx-h100", 169.9, 52e-6),
    ],
)
def test_sums_of_two_tensors_as_measured(cluster, megabytes, seconds):
    """Vidur's profiles, ``add`` of Llama 2 70B at 4096 and 3456 tokens, at its own bandwidth."""
    device = replace(load(cluster).device, memory_efficiency=0.9)
    predicted = kernel_s(Streaming(bytes=megabytes * 1e6), device)
    assert seconds * 0.9 < predicted < seconds * 1.4


def test_negative_work_is_refused():
    with pytest.raises(ValueError, match="negative"):
        kernel_s(Streaming(bytes=-1.0), DEVICE)
    with pytest.raises(ValueError, match="negative"):
        kernel_s(Contraction(flops=-1.0, bytes=0.0, dtype="float32"), DEVICE)


def test_overlap_at_its_ends():
    assert exposed_s(3.0, 5.0, 0.0) == 3.0
    assert exposed_s(3.0, 5.0, 1.0) == 0.0
    assert exposed_s(5.0, 3.0, 1.0) == 2.0
    assert exposed_s(5.0, 0.0, 1.0) == 5.0
    with pytest.raises(ValueError, match="cannot overlap"):
        exposed_s(1.0, 1.0, 1.5)


@settings(deadline=None, max_examples=100)
@given(st.floats(0, 1e3), st.floats(0, 1e3), st.floats(0, 1), st.floats(0, 1))
def test_exposed_time_lies_between_perfect_and_none(comm_s, compute_s, one, other):
    low, high = sorted((one, other))
    shown = exposed_s(comm_s, compute_s, high)
    assert max(0.0, comm_s - compute_s) - 1e-9 <= shown <= exposed_s(comm_s, compute_s, low)
    assert shown <= comm_s
