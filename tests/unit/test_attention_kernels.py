"""Attention with a learned bias: fused on GPUs; on CPUs it keeps its scores, and runs unfused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from autoplan.search.attention_kernels import attention_work
from autoplan.trace.capture import capture
from autoplan.trace.graph import OpNode, TensorMeta
from autoplan.trace.kernels import Kernels
from cost_models.work import FlashAttention, Gemm, Streaming, Work

HEADS, POSITIONS, WIDTH = 4, 24, 16
BATCH = 2
SCORES_BYTES = 4 * BATCH * HEADS * POSITIONS**2


class Attending(nn.Module):
    """Attention of heads, to the scores of which a parameter may be added."""

    def __init__(self, *, biased: bool = True) -> None:
        super().__init__()
        self.project = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH)
        bias = nn.Parameter(torch.randn(1, HEADS, POSITIONS, POSITIONS))
        self.bias = bias if biased else None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
            for part in self.project(x).chunk(3, -1)
        )
        return F.scaled_dot_product_attention(q, k, v, self.bias).square().mean()


def attention_of(kernels: Kernels, *, biased: bool = True) -> tuple[OpNode, list[TensorMeta]]:
    model = Attending(biased=biased)
    graph = capture(model, (torch.randn(BATCH, POSITIONS, HEADS * WIDTH),), kernels=kernels)
    (node,) = (node for node in graph.nodes if "scaled_dot" in node.target)
    return node, [graph.by_name[ref.node].outputs[ref.index] for ref in node.operands]


def work_flops(work: tuple[Work, ...]) -> float:
    return sum(part.flops for part in work if isinstance(part, Gemm | FlashAttention))


def counted(run: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def test_on_cpus_it_is_products_and_passes_over_the_scores():
    node, read = attention_of("cpu")
    work = attention_work(node, read, [meta.shape for meta in read])
    q, k, v = (torch.randn(BATCH, HEADS, POSITIONS, WIDTH, requires_grad=True) for _ in range(3))
    bias = torch.randn(1, HEADS, POSITIONS, POSITIONS, requires_grad=True)
    forward = counted(lambda: F.scaled_dot_product_attention(q, k, v, bias))
    both = counted(lambda: F.scaled_dot_product_attention(q, k, v, bias).sum().backward())
    assert (work_flops(work.forward), work_flops(work.backward)) == (forward, both - forward)
    passes = [part.bytes for part in work.forward if isinstance(part, Streaming)]
    assert passes == [4 * SCORES_BYTES]
    assert work.inner_bytes == 2 * SCORES_BYTES


def test_on_gpus_it_is_fused():
    node, read = attention_of("gpu")
    work = attention_work(node, read, [meta.shape for meta in read])
    assert all(isinstance(part, FlashAttention) for part in work.forward + work.backward)
    assert work.inner_bytes == 0


def test_without_a_bias_it_is_fused_on_both_and_does_as_much():
    found = [attention_of(kernels, biased=False) for kernels in ("cpu", "gpu")]
    works = [attention_work(node, read, [meta.shape for meta in read]) for node, read in found]
    assert works[0] == works[1]
    assert found[0][0].flops == found[1][0].flops == 4 * BATCH * HEADS * POSITIONS**2 * WIDTH


@pytest.mark.parametrize("kernels", ["cpu", "gpu"])
def test_ranks_that_share_heads_share_the_work(kernels: Kernels):
    node, read = attention_of(kernels)
    halves = [(*meta.shape[:1], HEADS // 2, *meta.shape[2:]) for meta in read]
    whole = attention_work(node, read, [meta.shape for meta in read])
    half = attention_work(node, read, halves)
    assert half.inner_bytes == whole.inner_bytes / 2
    assert work_flops(half.backward) == work_flops(whole.backward) / 2
