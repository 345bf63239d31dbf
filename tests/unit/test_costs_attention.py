"""Fused attention: closed forms, bounds, and what masks, groups and short sequences change."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.attention import attention_bytes
from cost_models.compute import kernel_s
from cost_models.work import FlashAttention
from hardware_profiles.load import load, names

DEVICES = {name: load(name).device for name in names()}
H100 = DEVICES["dgx-h100"]
attention = st.builds(
    FlashAttention,
    batch=st.integers(1, 8),
    heads=st.sampled_from([1, 4, 8, 32]),
    kv_heads=st.just(1),
    queries=st.integers(1, 8192),
    keys=st.integers(1, 8192),
    head_dim=st.sampled_from([32, 64, 80, 128, 192, 256]),
    value_dim=st.sampled_from([64, 128]),
    dtype=st.sampled_from(["bfloat16", "float16"]),
    causal=st.booleans(),
    backward=st.booleans(),
)


LONG = FlashAttention(
    batch=2,
    heads=16,
    kv_heads=16,
    queries=8192,
    keys=8192,
    head_dim=128,
    value_dim=128,
    dtype="bfloat16",
    causal=False,
)


def flash(**changed):
    return replace(LONG, **changed)


@pytest.mark.parametrize(
    ("backward", "stated"),
    [(False, H100.attention_forward_efficiency), (True, H100.attention_backward_efficiency)],
)
def test_long_sequences_reach_the_stated_efficiency(backward, stated):
    work = flash(backward=backward, queries=65536, keys=65536)
    assert work.flops / kernel_s(work, H100) / 989e12 == pytest.approx(stated, rel=0.02)


@settings(deadline=None, max_examples=150)
@given(attention, st.sampled_from(sorted(DEVICES)))
def test_never_above_the_peak_nor_faster_than_memory(work, name):
    device = DEVICES[name]
    peak = device.peak_flops.get(work.dtype, device.peak_flops["float32"])
    seconds = kernel_s(work, device)
    assert seconds >= work.flops / peak
    assert seconds >= attention_bytes(work) / device.memory_bytes_per_s


@settings(deadline=None, max_examples=150)
@given(attention, st.sampled_from(["batch", "heads", "queries", "keys"]), st.integers(1, 2000))
def test_more_scores_never_take_less_time(work, size, more):
    larger = replace(work, **{size: getattr(work, size) + more})
    assert kernel_s(larger, H100) >= kernel_s(work, H100) * (1 - 1e-12)


@settings(deadline=None, max_examples=100)
@given(attention)
def test_a_mask_saves_at_most_half(work):
    full, masked = replace(work, causal=False), replace(work, causal=True)
    assert kernel_s(masked, H100) >= kernel_s(full, H100) / 2


def test_masks_save_less_on_short_sequences():
    def saved(positions):
        sizes = {"batch": 32, "queries": positions, "keys": positions}
        return kernel_s(flash(**sizes, causal=True), H100) / kernel_s(flash(**sizes), H100)

    assert 0.5 < saved(16384) < saved(2048) < saved(512) < 1


def test_few_heads_and_short_sequences_do_not_fill_the_device():
    """Up to 132 tiles of 128 queries take as long as one: each has a multiprocessor."""
    one = kernel_s(flash(batch=1, heads=1, queries=128), H100)
    whole_wave = kernel_s(flash(batch=1, heads=33, queries=512), H100)
    two_waves = kernel_s(flash(batch=1, heads=66, queries=512), H100)
    assert kernel_s(flash(batch=1, heads=1, queries=512), H100) == one == whole_wave
    assert two_waves - one == pytest.approx(one - H100.launch_s)


def test_groups_of_queries_share_keys():
    apart, shared = flash(kv_heads=16), flash(kv_heads=2)
    width = 2 * 2 * 8192 * 128
    assert attention_bytes(apart) == 2 * width * (16 + 16)
    assert attention_bytes(shared) == 2 * width * (16 + 2)


def test_unequal_head_dimensions_lie_between_equal_ones():
    narrow, mixed, wide = (
        kernel_s(flash(head_dim=query, value_dim=value), H100)
        for query, value in ((128, 128), (192, 128), (192, 192))
    )
    assert narrow < mixed < wide


def test_head_dimensions_are_padded():
    assert kernel_s(flash(head_dim=72, value_dim=72), H100) == pytest.approx(
        kernel_s(flash(head_dim=96, value_dim=96), H100), rel=1e-3
    )


def test_without_multiprocessors_attention_is_its_roofline():
    cpu = DEVICES["cpu-gloo"]
    work = flash(dtype="float32", causal=False)
    rate = cpu.peak_flops["float32"] * cpu.matmul_efficiency
    assert kernel_s(work, cpu) == pytest.approx(work.flops / rate, rel=1e-3)


@pytest.mark.parametrize("positions", [64, 512, 1024, 4096])
def test_on_cpus_a_causal_mask_skips_whole_blocks_of_keys(positions):
    """A query sees the block of 512 keys that it stands in, and all before it."""
    cpu = replace(DEVICES["cpu-gloo"], launch_s=0.0)
    work = flash(dtype="float32", causal=False, queries=positions, keys=positions)
    seen = sum(min(512 * (query // 512 + 1), positions) for query in range(positions))
    share = seen / positions**2
    assert kernel_s(replace(work, causal=True), cpu) == pytest.approx(share * kernel_s(work, cpu))


def test_nothing_to_do_takes_no_time():
    assert kernel_s(flash(queries=0), H100) == 0
    with pytest.raises(ValueError, match="negative"):
        kernel_s(flash(keys=-1), H100)
