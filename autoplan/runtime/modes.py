"""What a graph says of how it computes: whether by the mode it was traced in, and how precisely.

An operator such as dropout has its mode among its arguments, fixed at trace time. A module without
such operators computes the same in both modes, and may be switched freely; of one that has some,
evaluation must be traced too (``trace.evaluation``).
"""

from __future__ import annotations

import torch

from autoplan.codegen.operators import arguments
from autoplan.trace.graph import OpGraph, OpNode

_MODE_FLAGS = ("train", "training", "use_input_stats")


def mode_dependent(graph: OpGraph) -> str | None:
    """Name of the first operator that computes otherwise in eval mode; None without one.

    Its schema has a mode flag or a dropout rate. A rate of 0, and a norm that keeps no running
    statistics, compute the same in both modes.
    """
    return next((node.name for node in graph.of_kind("call") if _depends_on_mode(node)), None)


def _depends_on_mode(node: OpNode) -> bool:
    values = arguments(node)
    if values.get("dropout_p", 0) != 0:
        return True
    if not any(flag in values for flag in _MODE_FLAGS):
        return False
    return values.get("p", 1) != 0 and values.get("running_mean", True) is not None


def lowest_dtype(graph: OpGraph) -> torch.dtype:
    """The least precise floating-point dtype of any value, or of the parts of complex ones."""
    named: set[torch.dtype] = {
        getattr(torch, meta.dtype) for node in graph.nodes for meta in node.outputs
    }
    used = {dtype.to_real() if dtype.is_complex else dtype for dtype in named}
    return max((d for d in used if d.is_floating_point), key=lambda dtype: torch.finfo(dtype).eps)
