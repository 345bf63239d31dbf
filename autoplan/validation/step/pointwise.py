"""Device memory that memory-bound operators move, per element, by how they are fused.

``eager`` runs every operator of PyTorch as its own kernel, ``fused`` the hand-written kernels of
Megatron-LM and Transformer Engine (bias and activation; bias, dropout and residual; norms; rotary),
``compiled`` what TorchInductor makes of them: one kernel from product to product. Activations have
two bytes, masks one; a sum that must be exact runs in four.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.validation.setups.setup import Setup


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """Bytes per element of one operator's kernels, and how many kernels that is."""

    forward: float
    backward: float
    kernels: int = 1


def norm(setup: Setup) -> Moved:
    """LayerNorm is one kernel everywhere; RMSNorm in eager PyTorch is many, in fp32."""
    if setup.framework.pointwise == "eager" and not setup.model.biases:
        return Moved(forward=36, backward=92, kernels=7)
    return Moved(forward=4, backward=6)


def residual(setup: Setup) -> Moved:
    """Dropout and the sum with the residual; backward also sums the two gradients of the fork."""
    dropout, pointwise = setup.framework.dropout, setup.framework.pointwise
    if not dropout:
        return Moved(forward=6 if pointwise != "compiled" else 4, backward=6)
    if pointwise == "eager":
        return Moved(forward=5 + 6, backward=5 + 6, kernels=2)
    return Moved(forward=7, backward=5 + 6)


def gradient_sums(setup: Setup, products: int) -> Moved:
    """Sums of the gradients of an input that so many products read, per element of it.

    Hand-written layers make one product of them; compilers sum within the next kernel.
    """
    fork = products - 1
    if setup.framework.pointwise == "fused" or not setup.model.gated:
        return Moved(forward=0, backward=0, kernels=0)
    if setup.framework.pointwise == "compiled":
        return Moved(forward=0, backward=2 * fork, kernels=0)
    return Moved(forward=0, backward=6 * fork, kernels=fork)


def activation(setup: Setup) -> Moved:
    """GELU per element of its input, or SwiGLU per element of one of its two inputs."""
    eager = setup.framework.pointwise == "eager"
    if setup.model.gated:
        return Moved(forward=10, backward=18, kernels=3) if eager else Moved(forward=6, backward=10)
    return Moved(forward=4, backward=6)


def rotary(setup: Setup) -> Moved:
    """Per element of queries and keys."""
    if setup.framework.pointwise == "eager":
        return Moved(forward=20, backward=20, kernels=4)
    return Moved(forward=4, backward=4)


def softmax(setup: Setup) -> Moved:
    """Masked softmax over written scores, per score; the fused causal kernel reads half of them."""
    if setup.framework.pointwise == "eager":
        return Moved(forward=2 + 2 + 4 + 4, backward=2 + 4 + 4 + 2, kernels=3)
    return Moved(forward=3, backward=4)


def score_dropout(setup: Setup) -> Moved:
    if not setup.framework.dropout:
        return Moved(forward=0, backward=0, kernels=0)
    return Moved(forward=5, backward=5)


_LOSS_BYTES = {"split": (26, 14), "eager": (14, 22), "compiled": (8, 6), "fused": (2, 4)}


def cross_entropy(setup: Setup) -> Moved:
    """Per logit: to fp32, log-softmax and back (over split logits in ten passes)."""
    forward, backward = _LOSS_BYTES[setup.framework.loss]
    return Moved(forward=forward, backward=backward, kernels=4)
