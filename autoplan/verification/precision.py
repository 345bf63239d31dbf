"""A graph, and tensors, with all floating-point and complex values in one precision.

A graph traced in bfloat16 has casts that one traced in float64 lacks, and the other way round, and
a plan names them all. So the program that is run is the plan's, operator by operator, computed more
precisely.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from autoplan.trace.graph import Arg, OpGraph, OpNode, TensorMeta, TorchValue


def computed_in(graph: OpGraph, dtype: str) -> OpGraph:
    """The graph with ``dtype`` in place of every floating-point dtype, and the same fingerprint.

    Parts of complex numbers have it too.
    """
    return replace(graph, nodes=tuple(_node(node, dtype) for node in graph.nodes))


def _node(node: OpNode, dtype: str) -> OpNode:
    return replace(
        node,
        args=tuple(_arg(value, dtype) for value in node.args),
        kwargs=tuple((name, _arg(value, dtype)) for name, value in node.kwargs),
        outputs=tuple(_meta(meta, dtype) for meta in node.outputs),
    )


def _meta(meta: TensorMeta, dtype: str) -> TensorMeta:
    return replace(meta, dtype=_in(meta.dtype, dtype))


def _arg(value: Arg, dtype: str) -> Arg:
    if isinstance(value, TorchValue) and value.kind == "dtype":
        return replace(value, name=_in(value.name, dtype))
    return tuple(_arg(item, dtype) for item in value) if isinstance(value, tuple) else value


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor in that floating-point dtype, if it is not of integers or truth values."""
    own = str(tensor.dtype).removeprefix("torch.")
    return tensor.to(getattr(torch, _in(own, str(dtype).removeprefix("torch."))))


def _in(own: str, dtype: str) -> str:
    """The name of ``dtype``, or of complex numbers of it, in place of a dtype like it."""
    kind: torch.dtype = getattr(torch, own)
    if kind.is_complex:
        return str(getattr(torch, dtype).to_complex()).removeprefix("torch.")
    return dtype if kind.is_floating_point else own
