"""The embedding before the first layer, and the head with the loss after the last."""

from __future__ import annotations

from autoplan.validation.ranks.sizes import residual_tokens
from autoplan.validation.setups.setup import Setup
from autoplan.validation.step import pointwise
from autoplan.validation.step.adapters import adapted
from autoplan.validation.step.linear import Linear
from autoplan.validation.step.passes import (
    ACTIVATION_BYTES,
    Message,
    Part,
    Pass,
    streaming,
)

EMBEDDING_BYTES = 2 * ACTIVATION_BYTES


def embedding(setup: Setup) -> Part:
    """Looks tokens up in this rank's share of the vocabulary; the sum over ``tp`` completes it.

    Its backward fills a gradient of the whole table with zeros, then adds the tokens' rows; a
    frozen table has none.
    """
    hidden, vocab = setup.model.hidden, -(-setup.model.vocab // setup.tp)
    looked_up = setup.tokens * hidden
    forward = Pass(kernels=(streaming(looked_up, EMBEDDING_BYTES, 3),))
    if setup.tp > 1:
        kind = "reduce_scatter" if setup.sequence_parallel else "all_reduce"
        nbytes = looked_up * ACTIVATION_BYTES
        forward += Pass(messages=(Message(kind=kind, nbytes=nbytes, axis="tp"),))
    if setup.tuning != "all":
        return Part(forward=forward)
    filled = vocab * hidden * ACTIVATION_BYTES
    return Part(
        forward=forward,
        inputs=Pass(kernels=(streaming(filled + looked_up * EMBEDDING_BYTES, 1.0, 3),)),
    )


def head(setup: Setup) -> Part:
    """Last norm, product with the vocabulary and cross-entropy; logits stay split over ``tp``."""
    hidden, vocab = setup.model.hidden, -(-setup.model.vocab // setup.tp)
    product = adapted(Linear(setup, setup.tokens, hidden, vocab))
    loss, norm = pointwise.cross_entropy(setup), pointwise.norm(setup)
    logits, normed = setup.tokens * vocab, residual_tokens(setup) * hidden
    forward = Pass(
        kernels=(
            streaming(normed, norm.forward, norm.kernels),
            *product.forward.kernels,
            streaming(logits, loss.forward, loss.kernels),
        )
    )
    inputs = Pass(
        kernels=(
            streaming(logits, loss.backward, loss.kernels),
            *product.inputs.kernels,
            streaming(normed, norm.backward, norm.kernels),
        )
    )
    if setup.tp > 1:
        forward += Pass(messages=_logit_sums(setup))
        inputs += Pass(messages=(_gradient_sum(setup),))
    return Part(forward=forward, inputs=inputs, weights=product.weights)


def _logit_sums(setup: Setup) -> tuple[Message, ...]:
    """Largest logit, the target's logit and the sum of exponentials of every token; the entry."""
    small = Message(kind="all_reduce", nbytes=4 * setup.tokens, axis="tp")
    entry = Message(kind="all_gather", nbytes=_hidden_bytes(setup), axis="tp")
    return (*(small,) * 3, *((entry,) if setup.sequence_parallel else ()))


def _gradient_sum(setup: Setup) -> Message:
    kind = "reduce_scatter" if setup.sequence_parallel else "all_reduce"
    return Message(kind=kind, nbytes=_hidden_bytes(setup), axis="tp", beside=True)


def _hidden_bytes(setup: Setup) -> int:
    return setup.tokens * setup.model.hidden * ACTIVATION_BYTES
