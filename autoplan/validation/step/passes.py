"""Kernels and messages of one pass through a part of a model, and the parts of every layer.

A ``Part`` (the attention block, the feed-forward block, the embedding, the head) has a forward, a
backward through its inputs and one through its weights; the last two are told apart because
messages of the first may run beside kernels of the second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cost_models.collectives import CollectiveKind
from cost_models.work import Streaming, Work

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
    """One part of the model; ``Part()`` does nothing.

    Attributes:
        forward: of the first run.
        again: what of the forward runs a second time within the backward.
        inputs: the backward down to the part's inputs.
        weights: gradients of the part's weights.
    """

    forward: Pass = NOTHING
    inputs: Pass = NOTHING
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
