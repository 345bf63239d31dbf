"""What a step is fed with: random inputs that the model can take.

A graph says what integers may be: rows of the tables that they index, and classes of the loss.
Other integers (masks, numbers that are computed with) are ones, or as in the example.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from autoplan.codegen.operators import arguments
from autoplan.trace.graph import OpGraph, OpNode, Ref
from autoplan.trace.inputs import named_inputs
from autoplan.zoo import ModelUnderPlan

IGNORED_SHARE = 0.3
"""Of the labels of tokens, those that do not count, in unequal number on every rank."""

_TABLES, _LOSSES = ("aten.embedding.default",), ("aten.cross_entropy_loss.default",)
_ARITHMETIC = tuple(
    f"aten.{name}.{kind}" for name in ("add", "sub", "mul") for kind in ("Tensor", "Scalar")
)


def draw_inputs(graph: OpGraph, case: ModelUnderPlan, batch: int) -> dict[str, Tensor]:
    """Inputs of a global batch by name, the same in every call."""
    generator = torch.Generator().manual_seed(1)
    examples = dict(_named(case))
    at_batch = graph.at_batch(batch)
    return {
        node.target: _draw(at_batch, node, examples.get(node.target), generator)
        for node in at_batch.of_kind("input")
    }


def in_form(case: ModelUnderPlan, drawn: Mapping[str, Tensor]) -> Any:
    """Drawn inputs as the model's example inputs are given; by name where constants are among."""
    given = {name: drawn.get(name, value) for name, value in _named(case)}
    is_plain = all(isinstance(value, Tensor) for value in given.values())
    is_named = isinstance(case.example_inputs, Mapping) or not is_plain
    return given if is_named else tuple(given.values())


def _named(case: ModelUnderPlan) -> Iterator[tuple[str, Any]]:
    has_loss = case.loss_fn is not None
    for name, value, _ in named_inputs(case.model, case.example_inputs, with_targets=has_loss):
        yield name, value


def _draw(graph: OpGraph, node: OpNode, example: Any, generator: torch.Generator) -> Tensor:
    meta = node.outputs[0]
    dtype: torch.dtype = getattr(torch, meta.dtype)
    if dtype.is_floating_point:
        return torch.randn(meta.shape, generator=generator, dtype=dtype)
    limits = list(_limits(graph, node))
    if not limits:
        return _like(example, meta.shape, dtype)
    least = min(values for _, values in limits)
    drawn = torch.randint(least, meta.shape, generator=generator).to(dtype)
    if all(call.target in _LOSSES for call, _ in limits) and len(meta.shape) > 1:
        ignored = torch.rand(meta.shape, generator=generator) < IGNORED_SHARE
        drawn = torch.where(ignored, _ignored(limits[0][0]), drawn)
    return drawn


def _ignored(loss: OpNode) -> int:
    """The label of what does not count."""
    index = arguments(loss)["ignore_index"]
    assert isinstance(index, int)
    return index


def _limits(graph: OpGraph, node: OpNode) -> Iterator[tuple[OpNode, int]]:
    """What indexes with an input, and how many values it can take there."""
    seen, open_names = set[str](), [node.name]
    while open_names:
        name = open_names.pop()
        for index, meta in enumerate(graph.by_name[name].outputs):
            ref = Ref(name, index)
            for reader in graph.readers.get(ref, ()) if _is_index(meta.dtype) else ():
                call = graph.by_name[reader]
                if call.target in _TABLES and call.operands[1] == ref:
                    yield call, graph.meta(call.operands[0]).shape[0]
                elif call.target in _LOSSES and call.operands[1] == ref:
                    logits = graph.meta(call.operands[0]).shape
                    yield call, logits[1 if len(logits) > 1 else 0]
                elif reader not in seen and call.target not in _ARITHMETIC:
                    seen.add(reader)
                    open_names.append(reader)


def _is_index(dtype: str) -> bool:
    kind: torch.dtype = getattr(torch, dtype)
    return not kind.is_floating_point and kind != torch.bool


def _like(example: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Values of the example, repeated along the batch; ones where it has none."""
    if not isinstance(example, Tensor) or example.is_meta:
        return torch.ones(shape, dtype=dtype)
    repeats = [-(-size // own) for size, own in zip(shape, example.shape, strict=True)]
    whole = example.cpu().repeat(repeats) if repeats else example.cpu().clone()
    return whole[tuple(slice(size) for size in shape)].to(dtype)
