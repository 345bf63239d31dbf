"""What lives for a moment within the backward pass: the loss's tensors, or one layer at work."""

from __future__ import annotations

from autoplan.validation.memory.activations import (
    FP32_BYTES,
    activation_bytes,
    recomputed_by_layer,
    tokens_of_experts,
)
from autoplan.validation.ranks.sizes import local_heads
from autoplan.validation.ranks.stages import ONE_LAYER, weights_of
from autoplan.validation.setups.setup import Setup


def loss_bytes(setup: Setup) -> float:
    """Largest tensors of cross-entropy for one microbatch, at the start of the backward.

    PyTorch keeps the log-probabilities and makes the gradient of the loss by them and that of the
    logits, in fp32 (in bf16 where all is bf16). Over ``tp`` (``loss_parallel``) the gradient is
    one-hot minus probabilities, with one more tensor in passing. Hand-written kernels keep the
    probabilities and turn them into the gradient in place, beside the logits.
    """
    if setup.framework.pointwise == "fused":
        return _logits(setup) * (FP32_BYTES + activation_bytes(setup))
    framework = setup.framework
    element_bytes = framework.master_bytes or framework.weight_bytes
    return _logits(setup) * element_bytes * (4 if setup.tp > 1 else 3)


def logits_bytes(setup: Setup) -> float:
    """Logits of one microbatch on one rank in the compute precision."""
    return activation_bytes(setup) * _logits(setup)


def layer_forward_bytes(setup: Setup) -> float:
    """Most that the forward of one layer allocates and frees again, in either of its blocks."""
    wide = _wide_tensors(setup) * _ffn_elements(setup)
    if setup.recompute == "operators":
        wide -= _ffn_elements(setup)
    elif setup.recompute != "block":
        wide = 0.0
    return max(
        _around_products(setup) + activation_bytes(setup) * wide,
        _around_products(setup) / 2 + _gathered_keys(setup),
    )


def layer_backward_bytes(setup: Setup) -> float:
    """One layer within its backward.

    What recompute brings back, gradients of its widest activations, and those of weights that wait
    to be reduced or added to the kept ones.
    """
    wide = (3 if setup.model.gated else 2) * _ffn_elements(setup)
    activations = _around_products(setup) + activation_bytes(setup) * wide
    gathered = _gathered_keys(setup) * (1 + FP32_BYTES / activation_bytes(setup) / setup.cp)
    weights = activation_bytes(setup) * _waiting_gradients(setup)
    return recomputed_by_layer(setup) + max(activations, gathered) + weights


def largest_product(setup: Setup) -> float:
    """Weights of a layer's largest product on one rank."""
    model = setup.model
    ffn = model.expert_ffn if model.experts else model.ffn
    return model.hidden * max(ffn, model.attention_width) / setup.tp


def _waiting_gradients(setup: Setup) -> float:
    """Weights whose new gradients are there at once: a layer's in FSDP, else one product's."""
    if setup.tuning != "all" or setup.framework.fuses_weight_gradients:
        return 0.0
    if setup.framework.master_bytes or setup.zero == 0:
        return largest_product(setup)
    return weights_of(setup, ONE_LAYER)


def _around_products(setup: Setup) -> float:
    """A block's input, gathered over ``tp``, and its output before the sum over ``tp``.

    With several sequences, gathering along the sequence copies once more. Products that overlap
    their messages gather through buffers outside the allocator and sum piece by piece.
    """
    copies = 2
    if setup.tp > 1 and setup.sequence_parallel:
        copies += setup.microbatch > 1
        if setup.framework.overlaps_tensor_parallel:
            copies -= 2 * (1 - 1 / setup.tp)
    return activation_bytes(setup) * setup.tokens * setup.model.hidden * copies


def _gathered_keys(setup: Setup) -> float:
    """Keys and values of the whole sequence, gathered over ``cp``."""
    if setup.cp == 1:
        return 0.0
    heads, kv_heads = local_heads(setup)
    repeated = heads if setup.framework.pointwise != "fused" else kv_heads
    width = 2 * repeated * setup.model.head_dim
    return activation_bytes(setup) * setup.tokens * setup.cp * width


def _logits(setup: Setup) -> float:
    return setup.tokens * setup.model.vocab / setup.tp


def _ffn_elements(setup: Setup) -> float:
    model = setup.model
    if model.experts:
        return tokens_of_experts(setup) * model.expert_ffn / setup.tp
    return setup.tokens * model.ffn / setup.tp


def _wide_tensors(setup: Setup) -> int:
    """Tensors as wide as the feed-forward block: inputs of the activation, between, and output."""
    if not setup.model.gated:
        return 2
    return 4 if setup.framework.pointwise == "eager" else 3
