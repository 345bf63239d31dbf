"""Where a forward in low precision becomes wider: by a float32 buffer, a cast, a new tensor.

A product that refuses its operands is seldom to blame: what widened one of them stands before it,
often in another module.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from autoplan.trace.refusals import where_of


def line_where_widened(product: fx.Node) -> str:
    """The user's ``file:line`` of the first operator on the way to a product of different types
    that made the wider of them of narrower numbers, '' where there is none."""
    width = max(_width(operand) for operand in product.all_input_nodes)
    waiting = [product]
    wide: set[fx.Node] = set()
    for node in waiting:
        found = [o for o in node.all_input_nodes if _width(o) == width and o not in wide]
        wide.update(found)
        waiting += found
    for node in (node for node in product.graph.nodes if node in wide):
        if any(0 < _width(operand) < width for operand in node.all_input_nodes):
            return where_of(node)
    return ""


def _width(node: fx.Node) -> int:
    """Bytes of a floating-point number of what a node makes, 0 of anything else."""
    value: Any = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return 0
    return value.dtype.itemsize
