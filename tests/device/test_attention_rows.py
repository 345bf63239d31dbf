"""Causal attention of queries that ranks split by their places, rank after rank on one device."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from autoplan.runtime.collectives import AxisGroup
from autoplan.runtime.ops import causal_attention_of_rows

RANKS = 4
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.device
@needs_gpu
@pytest.mark.parametrize("kv_heads", [2, 8])
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.bfloat16, 3e-2), (torch.float32, 1e-3)])
def test_a_gpu_gives_the_rows_of_the_whole(kv_heads: int, dtype: torch.dtype, rtol: float) -> None:
    _check(torch.device("cuda", 0), kv_heads, dtype, rtol)


@pytest.mark.parametrize("kv_heads", [2, 8])
def test_the_cpu_gives_the_rows_of_the_whole(kv_heads: int) -> None:
    _check(torch.device("cpu"), kv_heads, torch.float64, 1e-9)


def _check(device: torch.device, kv_heads: int, dtype: torch.dtype, rtol: float) -> None:
    torch.manual_seed(0)
    sizes = ((2, 8, 64, 32), (2, kv_heads, 64, 32), (2, kv_heads, 64, 32))
    whole = [torch.randn(*size, device=device, dtype=dtype).requires_grad_() for size in sizes]
    expected = F.scaled_dot_product_attention(*whole, is_causal=True, enable_gqa=True)
    wanted = torch.autograd.grad(expected.square().sum(), whole)
    rows = torch.cat([
        causal_attention_of_rows(
            part, *whole[1:], enable_gqa=True, axis=AxisGroup("tp", RANKS, rank, "")
        )
        for rank, part in enumerate(whole[0].chunk(RANKS, -2))
    ], -2)  # fmt: skip
    torch.testing.assert_close(rows, expected, rtol=rtol, atol=rtol)
    found = torch.autograd.grad(rows.square().sum(), whole)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=rtol * other.abs().max().item())
