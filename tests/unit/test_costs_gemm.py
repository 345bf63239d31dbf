"""Matrix products: closed forms on a toy device, bounds of any schedule, published changes."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.compute import kernel_s
from cost_models.gemm import RAMP_S, wave_share
from cost_models.work import Gemm
from hardware_profiles.load import load, names
from hardware_profiles.spec import DeviceSpec

# One multiprocessor multiplies 1 Tflop/s at best and loads a terabyte; memory never matters.
TOY = DeviceSpec(
    name="toy",
    peak_flops={"float32": 10e12, "bfloat16": 20e12},
    matmul_efficiency=0.5,
    memory_bytes=1 << 40,
    memory_bytes_per_s=1e30,
    memory_efficiency=1.0,
    launch_s=0.0,
    workspace_bytes=0,
    sm_count=10,
    sm_load_bytes_per_s=1e12,
)
A100, H100 = load("dgx-a100-80g").device, load("dgx-h100").device
DEVICES = {name: load(name).device for name in names()}
lines = st.integers(1, 64).map(lambda count: 128 * count)  # whole lines in every dtype
products = st.builds(
    Gemm,
    m=lines,
    n=lines,
    k=lines,
    batch=st.integers(1, 4),
    dtype=st.sampled_from(["bfloat16", "float32", "float8_e4m3fn"]),
    accumulates=st.booleans(),
)


def gemm(m, n, k, **others):
    return Gemm(m=m, n=n, k=k, dtype="bfloat16", **others)


@pytest.mark.parametrize(
    ("work", "tiles", "area", "steps"),
    [
        (gemm(2560, 128, 4096), 10, 256 * 128, 4096),  # one whole wave of the largest tile
        (gemm(2560, 256, 4096), 20, 256 * 128, 4096),
        (gemm(64, 64, 4096), 8, 64 * 64, 512),  # k split in eight: eight of ten multiprocessors
    ],
)
def test_tiles_and_waves(work, tiles, area, steps):
    waves = math.ceil(tiles / 10)
    seconds = waves * (2 * area * steps / 1e12 + RAMP_S * area / (256 * 128))
    assert kernel_s(work, TOY) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("tiles", "waves"), [(1, 1), (10, 1), (11, 1.55), (15, 1.75), (20, 2), (21, 2.55)]
)
def test_last_waves_count_between_their_share_and_whole(tiles, waves):
    assert wave_share(tiles, 10) == pytest.approx(waves)


def test_loads_of_operands_bound_a_tile():
    slow = replace(TOY, sm_load_bytes_per_s=1e9)
    step_s = (256 + 128) * 2 / 1e9
    assert kernel_s(gemm(2560, 128, 4096), slow) == pytest.approx(4096 * step_s + RAMP_S)


def test_half_of_writing_a_tile_shows():
    slow = replace(TOY, memory_bytes_per_s=2.56e12)
    written_s = 256 * 128 * 2 / (2.56e12 / 10)
    plain = kernel_s(gemm(2560, 128, 4096), TOY)
    assert kernel_s(gemm(2560, 128, 4096), slow) == pytest.approx(plain + written_s / 2)
    # what is added to is read ahead, so only its writing shows
    added = gemm(2560, 128, 4096, output_bytes=4, accumulates=True)
    assert kernel_s(added, slow) == pytest.approx(plain + 2 * written_s / 2)


def test_memory_bounds_a_product():
    slow = replace(TOY, memory_bytes_per_s=1e6)
    elements = 2560 * 64 + 64 * 128
    assert kernel_s(gemm(2560, 128, 64, output_bytes=4), slow) == pytest.approx(
        (2 * elements + 4 * 2560 * 128) / 1e6
    )
    assert kernel_s(gemm(2560, 128, 64, output_bytes=4, accumulates=True), slow) == pytest.approx(
        (2 * elements + 8 * 2560 * 128) / 1e6
    )


def test_without_multiprocessors_a_product_is_its_roofline():
    plain = replace(TOY, sm_count=None, sm_load_bytes_per_s=None, launch_s=3.0)
    assert kernel_s(gemm(100, 10, 1000), plain) == pytest.approx(3.0 + 2e6 / 10e12)


@settings(deadline=None, max_examples=150)
@given(products, st.sampled_from(sorted(DEVICES)))
def test_never_above_the_achieved_rate_nor_faster_than_memory(work, name):
    device = DEVICES[name]
    peak = device.peak_flops.get(work.dtype, device.peak_flops["float32"])
    element = {"bfloat16": 2, "float32": 4, "float8_e4m3fn": 1}[work.dtype]
    least = element * (work.m + work.n) * work.k + 2 * work.m * work.n
    seconds = kernel_s(work, device)
    assert seconds >= work.flops / peak
    assert seconds >= work.batch * least / device.memory_bytes_per_s


@settings(deadline=None, max_examples=150)
@given(products, st.sampled_from(["m", "n", "k", "batch"]), st.integers(1, 30))
def test_larger_products_never_take_less_time(work, size, more):
    larger = replace(work, **{size: getattr(work, size) + more * (128 if size != "batch" else 1)})
    assert kernel_s(larger, H100) >= kernel_s(work, H100)


@settings(deadline=None, max_examples=100)
@given(products)
def test_a_product_and_its_transpose_take_the_same_time(work):
    assert kernel_s(replace(work, m=work.n, n=work.m), A100) == pytest.approx(kernel_s(work, A100))


@settings(deadline=None, max_examples=100)
@given(products)
def test_a_batch_hardly_ever_takes_longer_than_its_products_apart(work):
    """Alone, each may fill the device by splitting k as no batch does."""
    apart = work.batch * kernel_s(replace(work, batch=1), H100)
    assert kernel_s(work, H100) <= 1.15 * apart


@settings(deadline=None, max_examples=100)
@given(products)
def test_large_products_reach_their_share_of_the_rate(work):
    """Products with many waves and a long k lose only the ramp and a part of the last wave."""
    large = replace(work, m=64 * work.m, n=64 * work.n, k=8 * work.k, dtype="bfloat16")
    assert kernel_s(large, A100) < 1.25 * large.flops / (312e12 * A100.matmul_efficiency)


def linear(tokens, inputs, outputs, device):
    shapes = ((tokens, outputs, inputs), (tokens, inputs, outputs), (inputs, outputs, tokens))
    return sum(kernel_s(gemm(*shape), device) for shape in shapes)


def test_padding_gpt2_vocabulary_pays():
    """50304 in place of 50257 sped the whole step of GPT-2 up by a quarter (nanoGPT)."""
    gain = linear(12288, 768, 50257, A100) / linear(12288, 768, 50304, A100)
    assert 1.6 < gain < 3.5


def test_hidden_13824_beats_14400():
    """120.05 against 94.39 TFLOP/s for the whole run at tp 8 (BigScience's 176B chronicle)."""

    def layer_rate(hidden):
        sizes = [(hidden, 3 * hidden // 8), (hidden // 8, hidden)]
        sizes += [(hidden, hidden // 2), (hidden // 2, hidden)]
        seconds = sum(linear(2048, inputs, outputs, A100) for inputs, outputs in sizes)
        return 6 * 2048 * sum(inputs * outputs for inputs, outputs in sizes) / seconds

    assert 1.15 < layer_rate(13824) / layer_rate(14400) < 1.4


def test_unknown_dtypes_and_negative_sizes_are_refused():
    with pytest.raises(ValueError, match="no products in 'int64'"):
        kernel_s(Gemm(m=1, n=1, k=1, dtype="int64"), H100)
    with pytest.raises(ValueError, match="negative"):
        kernel_s(gemm(-1, 1, 1), H100)
    assert kernel_s(gemm(0, 1, 1), H100) == 0
