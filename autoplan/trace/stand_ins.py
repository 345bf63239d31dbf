"""Writes ``autoplan::block`` nodes into a graph that is being exported, past the dispatcher.

Called as an operator, a block passes through all modes of the export, which costs some milliseconds
a call and is most of the time to trace a deep model. Written here, the node, its results and their
place in the autograd graph are the same.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from autoplan.trace.repeat_ops import BLOCK
from autoplan.trace.torch_private import (
    current_tracer,
    detached,
    proxies_paused,
    track_tensor,
)


class Results:
    """What a block returns, to be made anew for each of the calls that stand for it.

    Args:
        tensors: the results of the call that was traced.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]):
        with proxies_paused(), torch.no_grad():
            made = [torch.empty_strided(t.size(), t.stride(), dtype=t.dtype) for t in tensors]
            self._keep_strides = all(
                copy.stride() == one.stride()
                for copy, one in zip(map(torch.clone, made), made, strict=True)
            )
        self._templates = [
            one.requires_grad_(tensor.requires_grad)
            for one, tensor in zip(made, tensors, strict=True)
        ]

    def made(self) -> list[tuple[torch.Tensor, Any]] | None:
        """New fake tensors, results of an operator where they need gradients, and each detached.

        None where they could not be made like those of the block.
        """
        if not self._keep_strides:
            return None
        with proxies_paused():
            new = [template.clone() for template in self._templates]
            return [(tensor, detached(tensor)) for tensor in new]


def stand_in(
    key: str,
    path: str,
    ins: Sequence[torch.Tensor],
    stored: Sequence[torch.Tensor],
    outputs: str,
    results: Results,
) -> list[torch.Tensor]:
    """Adds the node of one block to the graph; arguments as those of ``autoplan::block``.

    Returns:
        The results of the block.
    """
    tracer = current_tracer()
    made = results.made()
    sources = [[tracer.unwrap_proxy(tensor) for tensor in tensors] for tensors in (ins, stored)]
    unknown = any(isinstance(source, torch.Tensor) for group in sources for source in group)
    if made is None or unknown:
        return BLOCK(key, path, list(ins), list(stored), outputs)
    nodes = [[proxy.node for proxy in group] for group in sources]
    block = tracer.create_node("call_function", BLOCK, (key, path, *nodes, outputs), {})
    block.meta["val"] = [value for _, value in made]
    for index, (tensor, value) in enumerate(made):
        item = tracer.create_node("call_function", operator.getitem, (block, index), {})
        item.meta["val"] = value
        track_tensor(tensor, tracer.proxy(item), constant=None, tracer=tracer)
    return [tensor for tensor, _ in made]
