"""Tensors made empty and filled part by part, as the concatenations that they are.

``y = x.new_empty(...); y[..., :a].copy_(u); y[..., a:].copy_(v)`` becomes ``y = cat([u, v], -1)``
where the parts lie side by side along one dim, cover all of it and are written once, before
anything else reads ``y``. What is not that simple stays, and is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

_aten = torch.ops.aten
_MADE = {_aten.new_empty.default, _aten.empty.memory_format}


def join_filled(graph: fx.Graph) -> None:
    """Rewrites the tensors of an exported graph that are filled part by part."""
    made = [node for node in graph.nodes if node.target in _MADE]
    if not made:
        return
    order = {node: index for index, node in enumerate(graph.nodes)}
    for node in made:
        writes = sorted(filter(_is_write, node.users), key=_start)
        copies = [next(iter(write.users)) for write in writes]
        if not writes or not _covered(node, writes):
            continue
        last = max(copies, key=order.__getitem__)
        readers = [user for user in node.users if user not in writes]
        if all(order[reader] > order[last] for reader in readers):
            _join(graph, node, copies, last, dim=_dim(writes[0]))


def _is_write(node: fx.Node) -> bool:
    """A slice of which nothing is done but to be written."""
    users = list(node.users)
    return (
        node.target is _aten.slice.Tensor
        and len(node.args) == 4
        and len(users) == 1
        and users[0].target is _aten.copy_.default
        and users[0].args[0] is node
        and not users[0].users
    )


def _dim(write: fx.Node) -> int:
    base: Any = write.args[0]
    dim: Any = write.args[1]
    return dim % base.meta["val"].dim()


def _start(write: fx.Node) -> int:
    start: Any = write.args[2]
    return start or 0


def _covered(node: fx.Node, writes: Sequence[fx.Node]) -> bool:
    """Whether the slices lie side by side along one dim, from its start to its end."""
    if len({_dim(write) for write in writes}) > 1:
        return False
    dim, stop = _dim(writes[0]), 0
    for write in writes:
        if _start(write) != stop:
            return False
        stop += write.meta["val"].shape[dim]
    return stop == node.meta["val"].shape[dim]


def _join(
    graph: fx.Graph, node: fx.Node, copies: Sequence[fx.Node], last: fx.Node, *, dim: int
) -> None:
    """Puts a concatenation behind the last write, if it gives what was there."""
    filled = node.meta["val"]
    sources: list[Any] = [copy.args[1] for copy in copies]
    values = [source.meta["val"] for source in sources]
    written: list[Any] = [copy.args[0] for copy in copies]
    if any(
        value.shape != part.meta["val"].shape or value.dtype != filled.dtype
        for value, part in zip(values, written, strict=True)
    ):
        return
    with filled.fake_mode, torch.no_grad():
        joined = torch.cat(values, dim)
    if joined.stride() != filled.stride():
        return
    with graph.inserting_after(last):
        cat = graph.call_function(_aten.cat.default, (sources, dim))
    cat.meta = {**last.meta, "val": joined}
    node.replace_all_uses_with(cat, delete_user_cb=lambda user: user not in written)
    for part, copy in zip(written, copies, strict=True):
        graph.erase_node(copy)
        graph.erase_node(part)
    graph.erase_node(node)
