"""Kernels and messages of one pass through a part of a model, and the parts of every layer.

A ``Part`` (the attention block, the feed-forward block, the embedding, the head) has a forward, a
backward through its inputs and one through its weights; the last two are told apart because
messages of the first may run beside kernels of the second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autoplan.validation.setup import Setup
from cost_models.collectives import CollectiveKind
from cost_models.work import Gemm, Streaming, Work

ACTIVATION_BYTES = 2

Axis = Literal["tp", "cp", "ep"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One collective over a model-parallel axis.

    Attributes:
        nbytes: of the whole tensor, as ``collective_s`` counts.
        beside: it may run beside kernels of its own pass, or of the weights' pass.
    """

    kind: CollectiveKind
    nbytes: float
    axis: Axis
    beside: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """What one microbatch does on one device in one pass."""

    kernels: tuple[Work, ...] = ()
    messages: tuple[Message, ...] = ()

    def __add__(self, other: Pass) -> Pass:
        return Pass(kernels=self.kernels + other.kernels, messages=self.messages + other.messages)


NOTHING = Pass()


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One part of the model.

    Attributes:
        forward: of the first run.
        again: what of the forward runs a second time within the backward.
        inputs: the backward down to the part's inputs.
        weights: gradients of the part's weights.
    """

    forward: Pass
    inputs: Pass
    weights: Pass = NOTHING
    again: Pass = NOTHING

    def __add__(self, other: Part) -> Part:
        return Part(
            forward=self.forward + other.forward,
            inputs=self.inputs + other.inputs,
            weights=self.weights + other.weights,
            again=self.again + other.again,
        )


def streaming(elements: float, bytes_each: float, kernels: int = 1) -> Streaming:
    """Memory-bound kernels over so many elements."""
    return Streaming(bytes=elements * bytes_each, kernels=kernels)


@dataclass(frozen=True, slots=True)
class Linear:
    """One product with a weight: (tokens, inputs) x (inputs, outputs), sizes of one rank."""

    setup: Setup
    tokens: int
    inputs: int
    outputs: int
    copies: int = 1

    @property
    def eight_bit(self) -> bool:
        return self.setup.compute_dtype.startswith("float8")

    def _product(self, m: int, n: int, k: int, *, into_gradient: bool = False) -> Gemm:
        fused = into_gradient and self.setup.framework.fuses_weight_gradients
        return Gemm(
            m=m,
            n=n,
            k=k,
            batch=self.copies,
            dtype=self.setup.compute_dtype,
            output_bytes=self.setup.framework.gradient_bytes if fused else ACTIVATION_BYTES,
            accumulates=fused,
        )

    def forward(self) -> tuple[Work, ...]:
        product = self._product(self.tokens, self.outputs, self.inputs)
        return (*self._casts(self.tokens * self.inputs), product)

    def inputs_backward(self) -> tuple[Work, ...]:
        product = self._product(self.tokens, self.inputs, self.outputs)
        return (*self._casts(self.tokens * self.outputs), product)

    def weights_backward(self) -> tuple[Work, ...]:
        """Gradient of the weight, of the bias, and the sum with what earlier microbatches left."""
        setup, framework = self.setup, self.setup.framework
        if setup.tuning != "all":
            return ()
        elements = self.copies * self.inputs * self.outputs
        kernels: list[Work] = [
            self._product(self.outputs, self.inputs, self.tokens, into_gradient=True)
        ]
        if setup.model.biases:
            kernels.append(streaming(self.copies * self.tokens * self.outputs, ACTIVATION_BYTES))
        if not framework.fuses_weight_gradients and setup.microbatches > 1 and setup.zero < 2:
            kept = framework.gradient_bytes
            kernels.append(streaming(elements, ACTIVATION_BYTES + 2 * kept))
        return tuple(kernels)

    def _casts(self, elements: int) -> tuple[Work, ...]:
        """Into 8 bits, once plain and once transposed for the other product of the backward."""
        if not self.eight_bit:
            return ()
        return (streaming(self.copies * elements, ACTIVATION_BYTES + 2),)
