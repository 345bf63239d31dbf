"""Where tokens come from: the dims of a model's inputs, or of what enters its first block."""

from __future__ import annotations

from collections.abc import Mapping

from autoplan.errors import PlanError
from autoplan.trace.graph import OpGraph, Ref, TensorMeta

_TOKENS = 1
"""The dim behind that of the samples."""


def token_starts(graph: OpGraph, cp: int) -> Mapping[Ref, int]:
    """Tensors that begin with tokens, and which of their dims these are.

    Integers and truth values ``(samples, tokens, ...)`` are of tokens, and so are numbers
    ``(samples, tokens, width)``. Without such inputs (images), the first activation of that shape
    that enters a block is where tokens begin.

    Raises:
        PlanError: there are none, or ``cp`` does not divide them.
    """
    found = _sources(graph)
    if not found:
        raise PlanError(f"cp={cp}: the model has no tokens that could be split; use cp=1")
    for ref, meta in found.items():
        if meta.shape[_TOKENS] % cp:
            raise PlanError(
                f"cp={cp} does not divide the {meta.shape[_TOKENS]} tokens of {ref.node}; use cp=1 "
                "or another length"
            )
    return dict.fromkeys(found, _TOKENS)


def fewest_tokens(graph: OpGraph) -> int:
    """Tokens of a sample, the fewest where there are several kinds; 0 where there are none."""
    return min((meta.shape[_TOKENS] for meta in _sources(graph).values()), default=0)


def _sources(graph: OpGraph) -> Mapping[Ref, TensorMeta]:
    inputs = {
        Ref(node.name): node.outputs[0]
        for node in graph.of_kind("input")
        if _has_tokens(node.outputs[0])
    }
    return inputs or _entering(graph)


def _has_tokens(meta: TensorMeta) -> bool:
    if meta.batch_dims != (0,):
        return False
    counts = meta.dtype == "bool" or "int" in meta.dtype
    return len(meta.shape) == 3 or (counts and len(meta.shape) > 1)


def _entering(graph: OpGraph) -> Mapping[Ref, TensorMeta]:
    entries = ((ref, graph.meta(ref)) for block in graph.blocks[:1] for ref in block.inputs)
    return dict([(ref, meta) for ref, meta in entries if len(meta.shape) == 3][:1])
