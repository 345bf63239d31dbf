"""Attention between the products with weights: scores, softmax, values; and its split over ``cp``.

``flash`` is the fused kernel. ``scores`` writes them: a product, the masked softmax, dropout, a
product. Over ``cp`` each rank keeps its queries and gathers keys and values, balanced so that every
rank does an equal share of the causal half.
"""

from __future__ import annotations

from autoplan.validation.ranks.sizes import local_heads
from autoplan.validation.setups.setup import Setup
from autoplan.validation.step import pointwise
from autoplan.validation.step.passes import (
    ACTIVATION_BYTES,
    Message,
    Part,
    Pass,
    streaming,
)
from cost_models.work import FlashAttention, Gemm

_HALF = {"float32": "float32", "float16": "float16"}


def attention_core(setup: Setup) -> Part:
    """Kernels and messages of one layer's attention for one microbatch on one rank."""
    core = _flash(setup) if setup.attention == "flash" else _scores(setup)
    return core + _gathered_keys(setup)


def activation_dtype(setup: Setup) -> str:
    """What attention multiplies: 8-bit products are for weights only."""
    return _HALF.get(setup.compute_dtype, "bfloat16")


def _flash(setup: Setup) -> Part:
    heads, kv_heads = local_heads(setup)
    share = setup.framework.split_attention_share if setup.cp > 1 else 1.0
    length = min(setup.document_len or setup.seq_len, setup.seq_len)
    documents = setup.microbatch * (setup.seq_len // length)

    def kernel(backward: bool) -> Pass:
        return Pass(
            kernels=(
                FlashAttention(
                    batch=documents,
                    heads=heads,
                    kv_heads=kv_heads,
                    queries=length // setup.cp,
                    keys=length,
                    head_dim=setup.model.head_dim,
                    value_dim=setup.model.head_dim,
                    dtype=activation_dtype(setup),
                    causal=True,
                    backward=backward,
                    generation=setup.framework.attention_generation,
                    rate_share=share,
                ),
            )
        )

    return Part(forward=kernel(False), inputs=kernel(True))


def _scores(setup: Setup) -> Part:
    heads, _ = local_heads(setup)
    queries, keys, batch = setup.seq_len // setup.cp, setup.seq_len, setup.microbatch * heads
    scores, values = batch * queries * keys, setup.tokens * heads * setup.model.head_dim
    softmax, dropout = pointwise.softmax(setup), pointwise.score_dropout(setup)

    def product(m: int, n: int, k: int) -> Gemm:
        return Gemm(m=m, n=n, k=k, batch=batch, dtype=activation_dtype(setup))

    width = setup.model.head_dim
    to_scores, to_values = product(queries, keys, width), product(queries, width, keys)
    kernels_between = softmax.kernels + dropout.kernels
    relayout = streaming(values, 2 * ACTIVATION_BYTES)
    return Part(
        forward=Pass(
            kernels=(
                to_scores,
                streaming(scores, softmax.forward + dropout.forward, kernels_between),
                to_values,
                relayout,
            )
        ),
        inputs=Pass(
            kernels=(
                relayout,
                to_scores,
                product(keys, width, queries),
                streaming(scores, softmax.backward + dropout.backward, kernels_between),
                to_values,
                product(keys, width, queries),
            )
        ),
    )


def _gathered_keys(setup: Setup) -> Part:
    if setup.cp == 1:
        return Part()
    _, kv_heads = local_heads(setup)
    nbytes = 2 * setup.microbatch * setup.seq_len * kv_heads * setup.model.head_dim
    nbytes *= ACTIVATION_BYTES
    gather = Message(kind="all_gather", nbytes=nbytes, axis="cp", beside=True)
    scatter = Message(kind="reduce_scatter", nbytes=nbytes, axis="cp", beside=True)
    return Part(forward=Pass(messages=(gather,)), inputs=Pass(messages=(gather, scatter)))
