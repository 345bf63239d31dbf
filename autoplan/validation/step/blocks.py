"""The two blocks of every layer: attention and feed-forward, each with norm and residual."""

from __future__ import annotations

from autoplan.validation.ranks.sizes import local_heads, residual_tokens
from autoplan.validation.setups.setup import Setup
from autoplan.validation.step import pointwise
from autoplan.validation.step.adapters import adapted, adapter
from autoplan.validation.step.attention_core import attention_core
from autoplan.validation.step.linear import Linear
from autoplan.validation.step.passes import (
    ACTIVATION_BYTES,
    Message,
    Part,
    Pass,
    streaming,
)
from autoplan.validation.step.tensor_parallel import entry_and_exit


def attention_block(setup: Setup) -> Part:
    """One layer's attention block for one microbatch on one rank."""
    heads, kv_heads = local_heads(setup)
    width, kv_width = heads * setup.model.head_dim, kv_heads * setup.model.head_dim
    hidden = setup.model.hidden
    return (
        _norm(setup)
        + adapted(Linear(setup, setup.tokens, hidden, width + 2 * kv_width))
        + _gradient_sums(setup, products=3)
        + _rotary(setup, width + kv_width)
        + attention_core(setup)
        + adapter(setup)
        + adapted(Linear(setup, setup.tokens, width, hidden))
        + entry_and_exit(setup)
        + _residual(setup)
    )


def feed_forward_block(setup: Setup) -> Part:
    """One layer's feed-forward block for one microbatch on one rank."""
    inner = _experts(setup) if setup.model.experts else _dense(setup)
    messages = entry_and_exit(setup, copies=setup.model.experts_per_token or 1)
    return _norm(setup) + inner + messages + _residual(setup)


def _dense(setup: Setup) -> Part:
    inner = _two_products(setup, setup.tokens, setup.model.ffn, copies=1)
    return inner + _gradient_sums(setup, products=2)


def _experts(setup: Setup) -> Part:
    """Router, exchange of tokens, this rank's experts with equal shares, exchange back."""
    model = setup.model
    experts = model.experts // setup.ep
    routed = setup.tokens * model.experts_per_token
    router = adapted(Linear(setup, setup.tokens, model.hidden, model.experts))
    permute = 2 * ACTIVATION_BYTES * routed * model.hidden
    moved = Pass(kernels=(streaming(2 * permute, 1.0, 2),))
    seen = max(1, min(experts, routed))
    inner = _two_products(setup, -(-routed // seen), model.expert_ffn, copies=seen)
    return router + Part(forward=moved, inputs=moved) + _exchange(setup) + inner


def _exchange(setup: Setup) -> Part:
    """Every rank sends its own tokens, as often as they are routed, and gets them back."""
    if setup.ep == 1:
        return Part()
    routed = residual_tokens(setup) * setup.model.experts_per_token
    nbytes = routed * setup.model.hidden * ACTIVATION_BYTES
    both_ways = Pass(messages=2 * (Message(kind="all_to_all", nbytes=nbytes, axis="ep"),))
    return Part(forward=both_ways, inputs=both_ways)


def _two_products(setup: Setup, tokens: int, ffn: int, *, copies: int) -> Part:
    """Products in and out of a width ``ffn`` that is split over ``tp``."""
    hidden, width = setup.model.hidden, -(-ffn // setup.tp)
    between = _pointwise(copies * tokens * width, pointwise.activation(setup))
    into = Linear(setup, tokens, hidden, width * (2 if setup.model.gated else 1), copies)
    return adapted(into) + between + adapted(Linear(setup, tokens, width, hidden, copies))


def _gradient_sums(setup: Setup, products: int) -> Part:
    moved = pointwise.gradient_sums(setup, products)
    sums = streaming(setup.tokens * setup.model.hidden, moved.backward, moved.kernels)
    return Part(inputs=Pass(kernels=(sums,)))


def _norm(setup: Setup) -> Part:
    return _between_blocks(setup, pointwise.norm(setup))


def _residual(setup: Setup) -> Part:
    return _between_blocks(setup, pointwise.residual(setup))


def _rotary(setup: Setup, width: int) -> Part:
    if not setup.model.rotary:
        return Part()
    return _pointwise(setup.tokens * width, pointwise.rotary(setup))


def _between_blocks(setup: Setup, moved: pointwise.Moved) -> Part:
    return _pointwise(residual_tokens(setup) * setup.model.hidden, moved)


def _pointwise(elements: int, moved: pointwise.Moved) -> Part:
    return Part(
        forward=Pass(kernels=(streaming(elements, moved.forward, moved.kernels),)),
        inputs=Pass(kernels=(streaming(elements, moved.backward, moved.kernels),)),
    )
