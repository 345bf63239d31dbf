"""Parts of published runs' steps, counted, for the tests of step times."""

from __future__ import annotations

from collections.abc import Iterable

from autoplan.validation.setups.setup import Setup
from autoplan.validation.step.blocks import attention_block, feed_forward_block
from autoplan.validation.step.passes import Message, Part, Pass
from autoplan.validation.step.recompute import with_recompute
from cost_models.work import Gemm, Streaming, Work


def layer_of(setup: Setup) -> Part:
    """One layer of a run, with what it runs again."""
    return with_recompute(setup, attention_block(setup) + feed_forward_block(setup))


def flops_of(*passes: Pass) -> float:
    """Operations of products and fused attention."""
    return sum(each.flops for each in _all(passes) if not isinstance(each, Streaming))


def products_of(*passes: Pass) -> list[Gemm]:
    return [each for each in _all(passes) if isinstance(each, Gemm)]


def streamed_bytes(*passes: Pass) -> float:
    return sum(each.bytes for each in _all(passes) if isinstance(each, Streaming))


def sent(*passes: Pass, axis: str) -> list[tuple[str, float]]:
    """Kind and bytes of each message over one axis, in order."""
    messages: Iterable[Message] = (each for one in passes for each in one.messages)
    return [(each.kind, each.nbytes) for each in messages if each.axis == axis]


def _all(passes: tuple[Pass, ...]) -> Iterable[Work]:
    return (kernel for each in passes for kernel in each.kernels)
