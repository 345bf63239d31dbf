"""Kernels of attention: fused, or its products and a softmax where a device keeps the scores.

A call that keeps its scores for the backward (``OpNode.saved``) runs unfused: attention with a
learned bias does on CPUs. Scores are then made, masked, and made shares of; the backward makes the
gradients of the shares and of the scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.sharding.equation import Shape
from autoplan.sharding.rules.attention import CAUSAL_OF_ROWS
from autoplan.trace.graph import DTYPE_BYTES, OpNode, TensorMeta
from cost_models.work import FlashAttention, Gemm, Streaming, Work

_IS_CAUSAL = 5
_FORWARD_PASSES, _BACKWARD_PASSES = 4, 4
"""Over the scores: masked and softmax, each read and written; softmax back (3) and a bias's sum."""
_FORWARD_KERNELS, _BACKWARD_KERNELS = 2, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionWork:
    """One call on one rank; ``inner_bytes`` are of what lives within it only."""

    forward: tuple[Work, ...]
    backward: tuple[Work, ...]
    inner_bytes: float = 0.0


def attention_work(
    node: OpNode, read: Sequence[TensorMeta], shapes: Sequence[Shape]
) -> AttentionWork:
    """The kernels of a call; no backward where neither queries, keys nor values learn.

    Args:
        read: queries, keys, values and a mask, whole: (..., heads, positions, head_dim).
        shapes: of the same on the rank.
    """
    learns = any(operand.requires_grad for operand in read)
    if _keeps_scores(node, read):
        return _unfused(node, shapes, learns)
    return AttentionWork(
        forward=(_fused(node, read, shapes, backward=False),),
        backward=(_fused(node, read, shapes, backward=True),) * learns,
    )


def _keeps_scores(node: OpNode, read: Sequence[TensorMeta]) -> bool:
    scores = math.prod(read[0].shape[:-1]) * read[1].shape[-2]
    nbytes = scores * DTYPE_BYTES[node.outputs[0].dtype]
    return any(kept.source is None and kept.nbytes >= nbytes for kept in node.saved)


def _fused(
    node: OpNode, read: Sequence[TensorMeta], shapes: Sequence[Shape], *, backward: bool
) -> FlashAttention:
    """A mask given as a tensor skips no scores.

    Of causal queries that ``tp`` splits by their places the last rank sees the most keys: all but
    half of its own in the mean. Over ``cp`` each rank sees half of all (``sharding.context``).
    """
    query, key, value = shapes[:3]
    causal, keys = node.argument(_IS_CAUSAL, "is_causal", False) is True, key[-2]
    if causal and query[-2] < read[0].shape[-2]:
        causal, keys = False, keys - query[-2] // 2
    if node.target == CAUSAL_OF_ROWS:
        causal, keys = False, keys // 2
    return FlashAttention(
        batch=math.prod(query[:-3]),
        heads=query[-3],
        kv_heads=key[-3],
        queries=query[-2],
        keys=keys,
        head_dim=query[-1],
        value_dim=value[-1],
        dtype=node.outputs[0].dtype,
        causal=causal,
        backward=backward,
    )


def _unfused(node: OpNode, shapes: Sequence[Shape], learns: bool) -> AttentionWork:
    query, key, value = shapes[:3]
    batch, queries, keys = math.prod(query[:-2]), query[-2], key[-2]
    dtype = node.outputs[0].dtype
    width = DTYPE_BYTES[dtype]
    scores_bytes = batch * queries * keys * width

    def product(m: int, n: int, k: int) -> Gemm:
        return Gemm(m=m, n=n, k=k, batch=batch, dtype=dtype, output_bytes=width)

    forward = (
        product(queries, keys, query[-1]),
        Streaming(bytes=_FORWARD_PASSES * scores_bytes, kernels=_FORWARD_KERNELS),
        product(queries, value[-1], keys),
    )
    backward = (
        product(keys, value[-1], queries),
        product(queries, keys, value[-1]),
        Streaming(bytes=_BACKWARD_PASSES * scores_bytes, kernels=_BACKWARD_KERNELS),
        product(queries, query[-1], keys),
        product(keys, query[-1], queries),
    )
    return AttentionWork(forward=forward, backward=backward * learns, inner_bytes=2 * scores_bytes)
