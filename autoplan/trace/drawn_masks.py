"""Masks that are drawn otherwise than by a dropout, as the dropout that they are.

    dropout2d(x, p)                                 ->  x * dropout(ones([n, c, 1, 1]), p)
    x.new_empty(size).bernoulli_(kept)              ->  dropout(ones(size), 1 - kept) * kept
    (kept + rand(size)).floor()                     ->  dropout(ones(size), 1 - kept) * kept

The last two are how layers are dropped for some samples (stochastic depth). What a dropout keeps is
the same under every plan, so that these are too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from autoplan.trace.rewriting import Writer, arguments

_aten = torch.ops.aten
_EMPTY = {_aten.new_empty.default, _aten.empty.memory_format, _aten.empty_like.default}
_UNIFORM = {_aten.rand.default, _aten.rand_like.default}
_FLOORED = {_aten.floor.default, _aten.floor_.default}


def write_masks_as_dropout(graph: fx.Graph) -> None:
    """Rewrites the masks of an exported graph in place."""
    for node in list(graph.nodes):
        call = Writer(graph, node)
        if node.target is _aten.feature_dropout.default:
            _write_feature_dropout(call, node)
        elif node.target is _aten.bernoulli_.float and _is_fresh(node):
            _write_mask(call, node, kept=arguments(node)["p"])
        elif node.target in _FLOORED and (kept := _kept_by_floor(node)) is not None:
            _write_mask(call, node, kept=kept)


def _write_feature_dropout(call: Writer, node: fx.Node) -> None:
    x, p, training = node.args
    assert isinstance(x, fx.Node)
    shape = x.meta["val"].shape
    mask = _dropped_ones(call, node, [*shape[:2], *[1] * (len(shape) - 2)], p, training)
    call.put(call(_aten.mul.Tensor, x, mask))


def _write_mask(call: Writer, node: fx.Node, kept: float) -> None:
    mask = _dropped_ones(call, node, list(node.meta["val"].shape), 1 - kept, True)
    call.put(call(_aten.mul.Tensor, mask, kept))


def _dropped_ones(call: Writer, node: fx.Node, size: list[int], p: Any, training: Any) -> fx.Node:
    dtype = node.meta["val"].dtype
    ones = call(_aten.ones.default, size, dtype=dtype, device=torch.device("cpu"))
    return call(_aten.dropout.default, ones, p, training)


def _is_fresh(node: fx.Node) -> bool:
    """Whether a call writes over memory that was just made, which is read under no other name."""
    made: Any = node.args[0]
    return made.target in _EMPTY and list(made.users) == [node]


def _kept_by_floor(node: fx.Node) -> float | None:
    """The ``kept`` of ``floor(kept + rand(size))``, where nothing else reads its parts."""
    total: Any = node.args[0]
    if total.target is not _aten.add.Tensor or list(total.users) != [node]:
        return None
    drawn, kept = total.args
    if not isinstance(drawn, fx.Node) or drawn.target not in _UNIFORM or len(drawn.users) > 1:
        return None
    return kept if isinstance(kept, float) and 0 <= kept <= 1 else None
