"""Arithmetic in place (``y += x``) as arithmetic: ``y = y + x``, where nothing can tell them apart.

What is written over must be a value that the graph computes, and afterwards be read by that name
only: not through a view made before, not as an input, a parameter or a buffer. The border of a
repeated block is crossed outwards only: behind a block, what it returned may be written over where
that is memory of its own. Type, shape and strides must be those of the result out of place. All
other operators in place stay, and are refused.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from autoplan.trace.regions import Region, find_regions
from autoplan.trace.repeat_ops import BLOCK, MARK
from autoplan.trace.torch_private import OpOverload, storage_id, tree_leaves

_aten = torch.ops.aten
_OUT_OF_PLACE: Mapping[Any, Any] = {
    _aten.add_.Tensor: _aten.add.Tensor,
    _aten.sub_.Tensor: _aten.sub.Tensor,
    _aten.mul_.Tensor: _aten.mul.Tensor,
    _aten.div_.Tensor: _aten.div.Tensor,
    _aten.pow_.Scalar: _aten.pow.Tensor_Scalar,
    _aten.zero_.default: _aten.zeros_like.default,
    _aten.fill_.Scalar: _aten.full_like.default,
    _aten.index_put_.default: _aten.index_put.default,
    _aten.scatter_.value: _aten.scatter.value,
    _aten.scatter_.src: _aten.scatter.src,
    _aten.masked_fill_.Scalar: _aten.masked_fill.Scalar,
    _aten.masked_fill_.Tensor: _aten.masked_fill.Tensor,
    **{
        getattr(_aten, f"{name}_").default: getattr(_aten, name).default
        for name in (
            "abs", "addcmul", "clamp", "clamp_max", "clamp_min", "elu", "exp", "gelu",
            "hardsigmoid", "hardswish", "hardtanh", "index_add", "leaky_relu", "mish", "neg",
            "relu", "relu6", "scatter_add", "selu", "sigmoid", "silu", "sqrt", "tanh",
        )
    },
}  # fmt: skip


def write_out_of_place(graph: fx.Graph) -> None:
    """Rewrites in-place arithmetic of an exported graph, whose ``no_grad`` regions are nested."""
    nodes = [node for node in graph.nodes if node.target in _OUT_OF_PLACE]
    if not nodes:
        return
    places = _Places.of(graph)
    for node in nodes:
        written: Any = node.args[0]
        if not isinstance(written, fx.Node) or not _same_result(node):
            continue
        aliases = [other for other in graph.nodes if _shares(other, written)]
        at = places.order[node]
        before = [other for other in aliases if places.order[other] < at]
        if all(places.is_private(other, written, node) for other in before):
            node.target = _OUT_OF_PLACE[node.target]
            written.replace_all_uses_with(
                node, delete_user_cb=lambda user, at=at: places.order[user] > at
            )


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the nodes of a graph stand.

    Attributes:
        order: their positions.
        regions: the traced block in which each lies, '' for none.
        returned: results of blocks that lie in memory of the block's own.
    """

    order: Mapping[fx.Node, int]
    regions: Mapping[fx.Node, str]
    returned: frozenset[fx.Node]

    @classmethod
    def of(cls, graph: fx.Graph) -> _Places:
        """The places of all nodes."""
        return cls(
            order={node: index for index, node in enumerate(graph.nodes)},
            regions=_regions(graph),
            returned=frozenset(_returned(graph)),
        )

    def is_private(self, alias: fx.Node, written: fx.Node, node: fx.Node) -> bool:
        """Whether nothing sees through ``alias`` that ``node`` writes over ``written``."""
        behind = written in self.returned and not self.regions[node]
        homes = {self.regions[node], *([self.regions[written]] if behind else [])}
        is_source = behind and alias.target is BLOCK
        if not (_is_plain(alias) or is_source) or self.regions[alias] not in homes:
            return False
        earlier = [user for user in alias.users if self.order[user] < self.order[node]]
        later = any(self.order[user] > self.order[node] for user in alias.users)
        leaves = f"exit:{self.regions[alias]}"
        seen = (_is_plain(user) or (behind and _is_mark(user, leaves)) for user in earlier)
        return all(seen) and (alias is written or not later)


def _returned(graph: fx.Graph) -> Iterator[fx.Node]:
    """Results of traced blocks, and of those that stand for them, that share no memory."""
    regions = find_regions(graph)
    own = {key: _own_results(region) for key, region in regions.items()}
    for key, region in regions.items():
        yield from (region.results[index] for index in own[key])
    for node in graph.nodes:
        if node.target is operator.getitem and node.args[0].target is BLOCK:
            block, index = node.args
            if index in own[block.args[0]]:
                yield node


def _own_results(region: Region) -> frozenset[int]:
    """Of the results of a block, those in memory that it neither was given nor returns twice."""
    given = {storage_id(node.meta["val"]) for node in region.reads}
    made = [storage_id(node.meta["val"]) for node in region.results]
    times = Counter(made)
    return frozenset(
        index for index, held in enumerate(made) if held not in given and times[held] == 1
    )


def _is_mark(node: fx.Node, tag: str) -> bool:
    return node.target is MARK and node.args[0] == tag


def _is_plain(node: fx.Node) -> bool:
    """A call of an operator, not a value from outside nor a block or region of operators."""
    return node.op == "call_function" and (
        node.target is operator.getitem
        or (isinstance(node.target, OpOverload) and node.target not in (BLOCK, MARK))
    )


def _regions(graph: fx.Graph) -> dict[fx.Node, str]:
    """The traced block in which each node lies, '' for none."""
    current, found = "", {}
    for node in graph.nodes:
        if node.target is MARK:
            what, _, key = node.args[0].partition(":")
            current = key if what == "enter" else ""
        found[node] = current
    return found


def _shares(node: fx.Node, other: fx.Node) -> bool:
    held = storage_id(other.meta["val"])
    return any(
        isinstance(value, torch.Tensor) and storage_id(value) == held
        for value in tree_leaves(node.meta.get("val"))
    )


def _same_result(node: fx.Node) -> bool:
    """Whether the operator out of place gives what was there: type, shape and strides."""
    given: Any = fx.map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
    args, kwargs = given
    written = args[0]
    pure: Callable[..., torch.Tensor] = _OUT_OF_PLACE[node.target]
    with written.fake_mode, torch.no_grad():
        made = pure(*args, **kwargs)
    return (made.dtype, made.shape, made.stride()) == (
        written.dtype, written.shape, written.stride()
    )  # fmt: skip
