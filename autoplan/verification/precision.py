"""A graph with all its floating-point values in one precision.

A graph traced in bfloat16 has casts that one traced in float64 lacks, and the other way round, and
a plan names them all. So the program that is run is the plan's, operator by operator, computed more
precisely.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from autoplan.trace.graph import Arg, OpGraph, OpNode, TensorMeta, TorchValue


def computed_in(graph: OpGraph, dtype: str) -> OpGraph:
    """The graph with ``dtype`` in place of every floating-point dtype, and the same fingerprint."""
    return replace(graph, nodes=tuple(_node(node, dtype) for node in graph.nodes))


def _node(node: OpNode, dtype: str) -> OpNode:
    return replace(
        node,
        args=tuple(_arg(value, dtype) for value in node.args),
        kwargs=tuple((name, _arg(value, dtype)) for name, value in node.kwargs),
        outputs=tuple(_meta(meta, dtype) for meta in node.outputs),
    )


def _meta(meta: TensorMeta, dtype: str) -> TensorMeta:
    return replace(meta, dtype=dtype) if _is_floating(meta.dtype) else meta


def _arg(value: Arg, dtype: str) -> Arg:
    if isinstance(value, TorchValue) and value.kind == "dtype" and _is_floating(value.name):
        return replace(value, name=dtype)
    return tuple(_arg(item, dtype) for item in value) if isinstance(value, tuple) else value


def _is_floating(dtype: str) -> bool:
    return getattr(torch, dtype).is_floating_point
