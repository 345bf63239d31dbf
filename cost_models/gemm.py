"""Time of matrix products: tiles of the result, in waves over the multiprocessors of the device.

A product is cut into tiles of its result. One multiprocessor makes one tile: for each step along k
it multiplies at its share of the achieved rate while it loads the next rows of both operands, and
the slower of the two counts (small tiles load more per operation). Beside its steps a tile costs a
ramp: filling the pipeline, and the part of writing the result that no other tile hides (what the
result is added to is read ahead). Tiles that do not fill the device may split k, which adds partial
sums to write and read. The fastest tile counts, as in a library's own choice; memory traffic and
the start of the kernel bound it from below.

A last wave of several that is not full costs the mean of a whole wave and of its share: busy
multiprocessors get the power that idle ones leave. Rows that are not whole lines of the cache load
more than they need, in smaller pieces.

On measured products (docs/costs.md) the constants below hold for A100, H100 and B200 alike; what
differs between devices are the rates of a multiprocessor, which profiles state.
"""

from __future__ import annotations

import math
from functools import lru_cache

from cost_models.peaks import element_bytes, peak_flops_per_s, streaming_bytes_per_s
from cost_models.work import Gemm
from hardware_profiles.spec import DeviceSpec

TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
LARGEST_TILE = 256 * 128
RAMP_S = 1e-6  # of the largest tile, beside its writing
WRITING_SHOWN = 0.5  # of writing a tile at one multiprocessor's share of memory
SPLITS = (2, 4, 8)
LINE_BYTES = 128
MISALIGNED = 1.15  # for each halving of the largest power of two in a row's bytes


def gemm_s(work: Gemm, device: DeviceSpec) -> float:
    """Seconds of the product without the start of its kernel.

    A device without ``sm_count`` runs at its achieved rate whatever the shape. A core of a CPU
    takes the operands in before it multiplies, and writes the result after it: that adds up.

    Raises:
        ValueError: no products exist in this dtype.
    """
    rate = matmul_flops_per_s(work.dtype, device)
    memory_s = gemm_bytes(work) / streaming_bytes_per_s(device)
    if device.operand_bytes_per_s is not None:
        return work.flops / rate + gemm_bytes(work) / device.operand_bytes_per_s
    if device.sm_count is None or device.sm_load_bytes_per_s is None:
        return max(work.flops / rate, memory_s)
    compute_s = _tiled_s(
        work.batch,
        work.m,
        work.n,
        work.k,
        element_bytes(work.dtype),
        work.output_bytes,
        device.sm_count,
        rate / device.sm_count,
        device.sm_load_bytes_per_s,
        streaming_bytes_per_s(device),
    )
    return max(compute_s, memory_s)


def gemm_bytes(work: Gemm) -> float:
    """Operands read once, the result written, and read before where it is added to."""
    operands = (work.m * work.k + work.k * work.n) * element_bytes(work.dtype)
    return float(work.batch * (operands + work.m * work.n * _result_bytes(work)))


def _result_bytes(work: Gemm) -> int:
    return work.output_bytes * (2 if work.accumulates else 1)


def matmul_flops_per_s(dtype: str, device: DeviceSpec) -> float:
    """Achieved rate of large products.

    Raises:
        ValueError: no products exist in this dtype.
    """
    efficiency = device.matmul_efficiency
    if element_bytes(dtype) == 1 and device.float8_matmul_efficiency is not None:
        efficiency = device.float8_matmul_efficiency
    return peak_flops_per_s(dtype, device) * efficiency


def wave_share(tiles: int, sm_count: int) -> float:
    """Waves that so many equal tiles take; a last one counts between its share and whole."""
    if tiles <= sm_count:
        return 1.0
    return (-(-tiles // sm_count) + tiles / sm_count) / 2


@lru_cache(maxsize=256)
def _tiles(
    element: int, sm_flops_per_s: float, sm_load_bytes_per_s: float
) -> tuple[tuple[int, int, float], ...]:
    """Rows and columns of each tile, and seconds of one step along k."""
    return tuple(
        (
            rows,
            columns,
            max(
                2 * rows * columns / sm_flops_per_s,
                (rows + columns) * element / sm_load_bytes_per_s,
            ),
        )
        for rows, columns in TILES
    )


@lru_cache(maxsize=1 << 16)
def _tiled_s(
    batch: int,
    m: int,
    n: int,
    k: int,
    element: int,
    result: int,
    sm_count: int,
    sm_flops_per_s: float,
    sm_load_bytes_per_s: float,
    memory_bytes_per_s: float,
) -> float:
    """The fastest choice of a tile and of a split of k."""
    slowdown = max(_misalignment(n * element), _misalignment(k * element))
    best_s = math.inf
    written_s = WRITING_SHOWN * result * sm_count / memory_bytes_per_s
    for rows, columns, step_s in _tiles(element, sm_flops_per_s, sm_load_bytes_per_s):
        tiles = batch * -(-m // rows) * -(-n // columns)
        ramp_s = rows * columns * (RAMP_S / LARGEST_TILE + written_s)
        tile_s = slowdown * step_s * k + ramp_s
        best_s = min(best_s, wave_share(tiles, sm_count) * tile_s)
        for split in SPLITS:
            if tiles * split > sm_count:
                break
            tile_s = slowdown * step_s * -(-k // split) + ramp_s
            partial_sums_s = 8 * split * batch * m * n / memory_bytes_per_s
            best_s = min(best_s, wave_share(tiles * split, sm_count) * tile_s + partial_sums_s)
    return best_s


def _misalignment(row_bytes: int) -> float:
    """How many times longer rows of so many bytes take than rows of whole 128-byte lines.

    NVIDIA's guide to matrix multiplication asks for such rows on A100. The size of the effect
    follows two published changes of a whole run: hidden size 14400 (rows of 3600 bytes on 8
    tensor-parallel A100) to 13824, 27 % more (BigScience's chronicle of its 176B model), and
    GPT-2's vocabulary from 50257 to 50304, 25 % more (nanoGPT).
    """
    if row_bytes % LINE_BYTES == 0:
        return 1.0
    return MISALIGNED ** math.log2(LINE_BYTES // math.gcd(row_bytes, LINE_BYTES))
