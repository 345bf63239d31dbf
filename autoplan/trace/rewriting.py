"""Calls of an exported graph: their arguments by name, and calls that are put in their place."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from autoplan.trace.torch_private import schema_arguments


def arguments(node: fx.Node) -> dict[str, Any]:
    """All arguments of a call by the names of the operator's schema, defaults filled in."""
    schema = schema_arguments(node)
    given = dict(zip((argument.name for argument in schema), node.args, strict=False))
    given.update(node.kwargs)
    for argument in schema:
        given.setdefault(argument.name, argument.default_value)
    return given


class Writer:
    """Inserts calls before a node, with its module and source line, to be put in its place."""

    def __init__(self, graph: fx.Graph, origin: fx.Node) -> None:
        self._graph, self._origin = graph, origin

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Inserts a call, and computes the metadata of its result."""
        with self._graph.inserting_before(self._origin):
            node = self._graph.call_function(target, args, kwargs)
        node.meta = {**self._origin.meta, "val": self.result_of(target, *args, **kwargs)}
        return node

    def result_of(self, target: Any, *args: Any, **kwargs: Any) -> Any:
        """What a call would give, as a fake tensor; nothing is inserted."""
        given = fx.map_arg((args, kwargs), lambda operand: operand.meta["val"])
        with self._origin.meta["val"].fake_mode, torch.no_grad():
            return target(*given[0], **given[1])

    def put(self, made: fx.Node) -> None:
        """Replaces the node by what was made instead."""
        self._origin.replace_all_uses_with(made)
        self._graph.erase_node(self._origin)
