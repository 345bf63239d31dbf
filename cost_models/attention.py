"""Time of the fused attention kernel, forward and backward.

One multiprocessor makes one tile of 128 positions of one head: queries in the forward, keys in the
backward. Its time is that of the scores it covers, each of which costs two products (five in the
backward) and a softmax that no tensor core helps with, plus a ramp. Tiles run in waves over the
device, so short sequences with few heads do not fill it. A causal mask skips the blocks above the
diagonal; those on it are done in full, and the last tile is twice as long as the mean.

A device without multiprocessors is a CPU. PyTorch's kernel there takes keys in blocks of 512, and a
causal mask skips whole blocks only: up to 512 positions nothing is skipped.

Sources: FlashAttention-2 (arXiv:2307.08691), section 3.2 for the tiles and section 4 for counting
operations; FlashAttention-3 (arXiv:2407.08608), figures 5 and 6, which docs/costs.md compares with.
"""

from __future__ import annotations

import math
from dataclasses import replace

from cost_models.gemm import wave_share
from cost_models.peaks import element_bytes, peak_flops_per_s, streaming_bytes_per_s
from cost_models.work import FlashAttention
from hardware_profiles.spec import DeviceSpec

TILE = 128
CPU_KEY_BLOCK = 512  # kvSplitSize of cpu_flash_attention in PyTorch
RAMP_S = 2e-6
HEAD_DIM_STEP = 32
SOFTMAX_S = 32e-12  # of a multiprocessor for one score; 16 exponentials a clock take 36e-12
BACKWARD_SOFTMAX_S = 55e-12
GENERATION_SHARE = 0.6  # "about 2x" (FlashAttention-2), "1.5 to 2x" (FlashAttention-3, abstracts)
CAUSAL_EFFICIENCY = 0.95  # masks are evaluated, and the tiles are unequal
STATED_HEAD_DIM = 128  # the profiles' efficiencies are this one's; wider heads are no better


def attention_s(work: FlashAttention, device: DeviceSpec) -> float:
    """Seconds of the kernel (the backward: its three kernels), without their starts."""
    return _newest_s(work, device) / (_generation_share(work, device) * work.rate_share)


def _generation_share(work: FlashAttention, device: DeviceSpec) -> float:
    """What an older kernel reaches of the profile's rates, which are those of the newest one."""
    behind = device.attention_generation - (work.generation or device.attention_generation)
    return GENERATION_SHARE ** max(0, behind)


def _newest_s(work: FlashAttention, device: DeviceSpec) -> float:
    if device.sm_count is None:
        return _on_cpu_s(work, device)
    tile_s, longest_s = _tile_s(work, device, device.sm_count)
    tiled = work.keys if work.backward else work.queries
    tiles = work.batch * work.heads * math.ceil(tiled / TILE)
    compute_s = max(wave_share(tiles, device.sm_count) * tile_s, longest_s)
    memory_rate = streaming_bytes_per_s(device)
    return max(compute_s, attention_bytes(work) / memory_rate) + _apart_bytes(work) / memory_rate


def _on_cpu_s(work: FlashAttention, device: DeviceSpec) -> float:
    """At the stated rate over all blocks of keys of which the mask leaves a part."""
    rate = peak_flops_per_s(work.dtype, device) * _stated_efficiency(work.backward, device)
    flops = replace(work, causal=False).flops
    if work.causal:
        flops *= (work.keys + min(work.keys, CPU_KEY_BLOCK)) / (2 * work.keys)
    return max(flops / rate, attention_bytes(work) / streaming_bytes_per_s(device))


def attention_bytes(work: FlashAttention) -> float:
    """What the main kernel reads and writes: each tensor once, keys and values once per group."""
    query_rows, key_rows = work.heads * work.queries, work.kv_heads * work.keys
    rows = query_rows + key_rows * (2 if work.backward else 1)
    elements = work.batch * rows * (work.head_dim + work.value_dim)
    return float(elements * element_bytes(work.dtype))


def _apart_bytes(work: FlashAttention) -> float:
    """The backward's kernels before and after the main one.

    The first multiplies the output with its gradient row by row and clears the gradient of the
    queries, which is summed in float32; the last one converts that sum.
    """
    if not work.backward:
        return 0.0
    element = element_bytes(work.dtype)
    row = 2 * work.value_dim * element + work.head_dim * (4 + 4 + element)
    return float(work.batch * work.heads * work.queries * row)


def _tile_s(work: FlashAttention, device: DeviceSpec, sm_count: int) -> tuple[float, float]:
    """Seconds of a mean tile and of the longest one."""
    kept = work.queries if work.backward else work.keys
    position_s = TILE * _score_s(work, device, sm_count)
    if not work.causal:
        return position_s * kept + RAMP_S, 0.0
    position_s /= CAUSAL_EFFICIENCY
    return position_s * min(kept, (kept + TILE) / 2) + RAMP_S, position_s * kept + RAMP_S


def _score_s(work: FlashAttention, device: DeviceSpec, sm_count: int) -> float:
    """Seconds that one multiprocessor takes for one score.

    The time at the profile's head dimension less the softmax is the products', which grow with
    the head dimensions; they never run above the peak.
    """
    softmax_s = BACKWARD_SOFTMAX_S if work.backward else SOFTMAX_S
    peak = peak_flops_per_s(work.dtype, device) / sm_count
    stated = _score_flops(STATED_HEAD_DIM, STATED_HEAD_DIM, work.backward)
    stated_s = stated / (peak * _stated_efficiency(work.backward, device))
    flop_s = max((stated_s - softmax_s) / stated, 1 / peak)
    widest = max(work.head_dim, work.value_dim, STATED_HEAD_DIM)
    flops = _score_flops(_padded(work.head_dim), _padded(work.value_dim), work.backward)
    return flops * flop_s + softmax_s * widest / STATED_HEAD_DIM


def _score_flops(head_dim: int, value_dim: int, backward: bool) -> int:
    """Operations of the products for one score: two in the forward, five in the backward."""
    return 2 * (3 * head_dim + 2 * value_dim if backward else head_dim + value_dim)


def _padded(head_dim: int) -> int:
    return math.ceil(head_dim / HEAD_DIM_STEP) * HEAD_DIM_STEP


def _stated_efficiency(backward: bool, device: DeviceSpec) -> float:
    stated = (
        device.attention_backward_efficiency if backward else device.attention_forward_efficiency
    )
    return device.matmul_efficiency if stated is None else stated
