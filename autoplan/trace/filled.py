"""Tensors made empty or of zeros and filled part by part, as the concatenations that they are.

``y = x.new_empty(...); y[..., :a].copy_(u); y[..., a:].copy_(v)`` becomes ``y = cat([u, v], -1)``
where the parts lie side by side along one dim, cover all of it and are written once, before
anything else reads ``y``. A part may be a single index (``y[..., 0] = 1``), and one number. What is
not that simple stays, and is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

_aten = torch.ops.aten
_MADE = {
    _aten.new_empty.default,
    _aten.empty.memory_format,
    _aten.empty_like.default,
    _aten.new_zeros.default,
    _aten.zeros.default,
    _aten.zeros_like.default,
}
_COPIES, _FILLS = {_aten.copy_.default}, {_aten.fill_.Tensor}


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
    """A slice, or an index, of which nothing is done but to be written."""
    users = list(node.users)
    is_slice = node.target is _aten.slice.Tensor and len(node.args) == 4
    return (
        (is_slice or node.target is _aten.select.int)
        and len(users) == 1
        and users[0].target in (_COPIES if is_slice else _COPIES | _FILLS)
        and users[0].args[0] is node
        and not users[0].users
    )


def _dim(write: fx.Node) -> int:
    base: Any = write.args[0]
    dim: Any = write.args[1]
    return dim % base.meta["val"].dim()


def _start(write: fx.Node) -> int:
    start: Any = write.args[2]
    if write.target is _aten.select.int and start < 0:
        base: Any = write.args[0]
        return start + base.meta["val"].shape[_dim(write)]
    return start or 0


def _width(write: fx.Node) -> int:
    """How much of the dim a write covers."""
    return 1 if write.target is _aten.select.int else write.meta["val"].shape[_dim(write)]


def _covered(node: fx.Node, writes: Sequence[fx.Node]) -> bool:
    """Whether the slices lie side by side along one dim, from its start to its end."""
    if len({_dim(write) for write in writes}) > 1:
        return False
    dim, stop = _dim(writes[0]), 0
    for write in writes:
        if _start(write) != stop:
            return False
        stop += _width(write)
    return stop == node.meta["val"].shape[dim]


def _join(
    graph: fx.Graph, node: fx.Node, copies: Sequence[fx.Node], last: fx.Node, *, dim: int
) -> None:
    """Puts a concatenation behind the last write, if it gives what was there."""
    filled = node.meta["val"]
    written: list[Any] = [copy.args[0] for copy in copies]
    if not all(map(_fits, copies)):
        return
    with graph.inserting_before(last):
        sources = [_source(graph, copy, dim) for copy in copies]
        with filled.fake_mode, torch.no_grad():
            joined = torch.cat([source.meta["val"] for source in sources], dim)
        if joined.stride() != filled.stride():
            return
        cat = graph.call_function(_aten.cat.default, (sources, dim))
    cat.meta = {**last.meta, "val": joined}
    node.replace_all_uses_with(cat, delete_user_cb=lambda user: user not in written)
    for part, copy in zip(written, copies, strict=True):
        graph.erase_node(copy)
        graph.erase_node(part)
    graph.erase_node(node)


def _fits(copy: fx.Node) -> bool:
    """Whether what is written has the type of its part, and its shape unless it is one number."""
    part, source = (value.meta["val"] for value in copy.args)  # pyright: ignore
    shape = torch.Size() if copy.target in _FILLS else part.shape
    return source.dtype == part.dtype and source.shape == shape


def _source(graph: fx.Graph, copy: fx.Node, dim: int) -> fx.Node:
    """What is written, in the shape of a slice."""
    part: Any = copy.args[0]
    source: Any = copy.args[1]
    if part.target is not _aten.select.int:
        return source
    shape = list(part.meta["val"].shape)
    if copy.target in _FILLS:
        return _called(graph, copy, _aten.expand.default, (source, [*shape[:dim], 1, *shape[dim:]]))
    return _called(graph, copy, _aten.unsqueeze.default, (source, dim))


def _called(graph: fx.Graph, origin: fx.Node, operator: Any, args: tuple[Any, ...]) -> fx.Node:
    value = args[0].meta["val"]
    made = graph.call_function(operator, args)
    with value.fake_mode, torch.no_grad():
        made.meta = {**origin.meta, "val": operator(value, *args[1:])}
    return made
