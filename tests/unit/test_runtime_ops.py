"""Class-split cross entropy and row-split embedding against torch's own, on simulated ranks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.errors import UnsupportedModelError
from autoplan.runtime.ops import vocab_parallel_cross_entropy, vocab_parallel_embedding
from autoplan.sharding.placement import Partial, Replicate, Shard
from tests.parity.ranks import combine, of_rank, per_rank, shards, simulated_ranks

REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}


@settings(deadline=None, max_examples=40)
@given(
    ranks=st.sampled_from([2, 4]),
    chunk=st.integers(1, 5),
    positions=st.sampled_from([(), (1,), (6,), (2, 3)]),
    reduction=st.sampled_from([0, 1, 2]),
    smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    ignored=st.sampled_from([-100, 1]),
    scale=st.sampled_from([1.0, 1e4]),
    seed=st.integers(0, 1000),
)
def test_cross_entropy(ranks, chunk, positions, reduction, smoothing, ignored, scale, seed):
    torch.manual_seed(seed)
    classes = ranks * chunk
    shape = (positions[0], classes, *positions[1:]) if positions else (classes,)
    logits = (torch.randn(shape, dtype=torch.float64) * scale).requires_grad_()
    target = torch.randint(classes, positions)
    target = torch.where(torch.rand(positions) < 0.3, ignored, target)
    expected = F.cross_entropy(
        logits, target, None, reduction=REDUCTIONS[reduction],
        ignore_index=ignored, label_smoothing=smoothing,
    )  # fmt: skip
    grad = torch.randn_like(expected)
    expected.backward(grad)

    dim = Shard(1 if positions else 0)
    with simulated_ranks(ranks) as axis:
        x = per_rank(shards(logits.detach(), dim, ranks)).requires_grad_()
        y = vocab_parallel_cross_entropy(x, target, None, reduction, ignored, smoothing, axis=axis)
        y.backward(per_rank([grad] * ranks))
    torch.testing.assert_close(combine(of_rank(y), Replicate()), expected.detach(), equal_nan=True)
    torch.testing.assert_close(combine(of_rank(x.grad), dim), logits.grad, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cross_entropy_keeps_the_dtype_and_accumulates_in_float32(dtype):
    torch.manual_seed(0)
    logits, target = torch.randn(512, 64).to(dtype), torch.randint(64, (512,))
    expected = F.cross_entropy(logits.double(), target, reduction="sum")
    with simulated_ranks(2) as axis:
        x = per_rank(shards(logits, Shard(1), 2))
        y = vocab_parallel_cross_entropy(x, target, None, 2, axis=axis)
    assert y.dtype == dtype
    torch.testing.assert_close(of_rank(y)[0].double(), expected, rtol=1e-2, atol=0)


@settings(deadline=None, max_examples=20)
@given(
    ranks=st.sampled_from([2, 4]),
    rows=st.integers(1, 4),
    padding=st.sampled_from([-1, 0, 1, "last"]),
    seed=st.integers(0, 1000),
)
def test_embedding(ranks, rows, padding, seed):
    torch.manual_seed(seed)
    table = torch.randn(ranks * rows, 3, dtype=torch.float64, requires_grad=True)
    padding = ranks * rows - 1 if padding == "last" else padding
    ids = torch.randint(ranks * rows, (2, 5))
    expected = torch.embedding(table, ids, padding)
    grad = torch.randn_like(expected)
    expected.backward(grad)
    with simulated_ranks(ranks) as axis:
        weight = per_rank(shards(table.detach(), Shard(0), ranks)).requires_grad_()
        out = vocab_parallel_embedding(weight, ids, padding, axis=axis)
        out.backward(per_rank([grad] * ranks))
    torch.testing.assert_close(combine(of_rank(out), Partial()), expected.detach())
    torch.testing.assert_close(combine(of_rank(weight.grad), Shard(0)), table.grad)


def test_refusals_name_what_cannot_be_split():
    with simulated_ranks(2) as axis:
        x, target = torch.randn(2, 4), torch.tensor([0, 1])
        with pytest.raises(UnsupportedModelError, match="class weights"):
            vocab_parallel_cross_entropy(x, target, torch.ones(4), axis=axis)
        with pytest.raises(UnsupportedModelError, match="probability targets"):
            vocab_parallel_cross_entropy(x, torch.rand(2, 4), axis=axis)
        with pytest.raises(UnsupportedModelError, match="scale_grad_by_freq"):
            vocab_parallel_embedding(x, target, -1, True, axis=axis)
