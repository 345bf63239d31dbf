"""Takes out of an exported graph what has no effect, and refuses what autoplan cannot run.

Dropped: metadata assertions, aliases, copies of lifted constants, casts and dropout without effect,
tensors that lend others no more than a dtype, and dead nodes. Refused by name: operators that stay
in place (``inplace``), buffers updated by the forward, sizes that depend on data, products of
different types, and operators that are no plain tensor functions.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from autoplan.trace.aliases import write_known_operators
from autoplan.trace.attention_dropout import write_out_attention
from autoplan.trace.drawn_masks import write_masks_as_dropout
from autoplan.trace.filled import join_filled
from autoplan.trace.flatten import inline_regions
from autoplan.trace.inplace import write_out_of_place
from autoplan.trace.lookups import write_lookups
from autoplan.trace.refusals import Refuse, refuse_at_once, refused
from autoplan.trace.torch_private import OpOverload, storage_id, tree_leaves
from autoplan.trace.widened import line_where_widened

_aten = torch.ops.aten
_ASSERTIONS = {_aten._assert_tensor_metadata.default}
_NO_OPS = {_aten.alias.default, _aten.lift_fresh_copy.default}
_NORMS: dict[Any, str] = {
    _aten.batch_norm.default: "use an nn.BatchNorm module",
    _aten.instance_norm.default: "give track_running_stats=False",
}
_PRODUCTS = {
    _aten.addmm.default,
    _aten.linear.default,
    _aten.matmul.default,
    _aten.mm.default,
}
_PARTS = {_aten.select.int, _aten.slice.Tensor}
_MADE_LIKE: dict[Any, Any] = {
    _aten.new_zeros.default: _aten.zeros.default,
    _aten.new_ones.default: _aten.ones.default,
    _aten.new_full.default: _aten.full.default,
}


def clean(
    module: fx.GraphModule,
    *,
    unfuses_attention: bool = False,
    autocast_on: str | None = None,
    refuse: Refuse = refuse_at_once,
) -> None:
    """Cleans the graph of an exported module in place.

    Args:
        unfuses_attention: whether attention without dropout is written out as well.
        autocast_on: the kind of device whose autocast is written out.
        refuse: told of each node that is refused.

    Raises:
        UnsupportedModelError: naming the operator and the source line.
    """
    graph = module.graph
    join_filled(graph)
    write_masks_as_dropout(graph)
    write_out_of_place(graph)
    inline_regions(module, graph, refuse, autocast_on)
    write_out_attention(graph, every=unfuses_attention)
    write_lookups(graph, refuse)
    write_known_operators(graph)
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in _ASSERTIONS:
            graph.erase_node(node)
        elif node.target is _aten.detach_.default and node.args[0].op == "call_function":
            node.target = _aten.detach.default
        elif node.target in _MADE_LIKE:
            _make_alone(node)
        elif _is_no_op(node) or _is_idle_dropout(node) or _is_idle_cast(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    drop_dead(graph)
    for check in (_check_norm, _check_product, _check):
        for node in graph.nodes:
            check(node, refuse)


def drop_dead(graph: fx.Graph) -> None:
    """Erases calls that nothing reads."""
    for node in reversed(list(graph.nodes)):
        if node.op in ("call_function", "get_attr") and not node.users and not node.is_impure():
            graph.erase_node(node)


def _make_alone(node: fx.Node) -> None:
    """``x.new_zeros(size)`` as ``zeros(size)``: it would be taken to read the samples of ``x``."""
    made: torch.Tensor = node.meta["val"]
    node.target = _MADE_LIKE[node.target]
    node.args = node.args[1:]
    node.kwargs = {"dtype": made.dtype, "device": made.device}


def _is_no_op(node: fx.Node) -> bool:
    """An alias, or what the export does to a constant: a copy, detached in place."""
    return node.target in _NO_OPS or node.target is _aten.detach_.default


def _is_idle_dropout(node: fx.Node) -> bool:
    if node.target is not _aten.dropout.default:
        return False
    _, probability, training = node.args
    return training is False or bool(probability == 0)


def _is_idle_cast(node: fx.Node) -> bool:
    """Whether a cast returned its operand, which has that dtype already."""
    if getattr(node.target, "overloadpacket", None) is not _aten.to:
        return False
    operand: Any = node.args[0]
    return storage_id(node.meta["val"]) == storage_id(operand.meta["val"])


def _check_norm(node: fx.Node, refuse: Refuse) -> None:
    """Refuses norms by functions that change their running statistics, as those of batches do."""
    target: Any = node.target
    cure = _NORMS.get(target)
    if cure is not None and node.args[5] and node.args[3] is not None:
        name = target._schema.name.removeprefix("aten::")
        what = f"F.{name} that updates running statistics is not supported"
        refuse(refused(node, what, cure, "buffer mutation"))


def _check_product(node: fx.Node, refuse: Refuse) -> None:
    """Fake tensors of different types are multiplied, which others are not."""
    if node.target not in _PRODUCTS:
        return
    types = {str(operand.meta["val"].dtype) for operand in node.all_input_nodes}
    if len(types) > 1:
        names = " and ".join(sorted(name.removeprefix("torch.") for name in types))
        what = f"{node.target} multiplies {names}, which PyTorch does not do"
        widened = line_where_widened(node)
        cast = f"at {widened}, which made it wider" if widened else "one to the other's type"
        refuse(refused(node, what, f"cast {cast}, or give precision='fp32'"))


def _check(node: fx.Node, refuse: Refuse) -> None:
    if node.op in ("placeholder", "output"):
        return
    if node.op == "call_function" and node.target is operator.getitem:
        return
    if not isinstance(node.target, OpOverload):
        what = f"{node.target} is not supported"
        refuse(refused(node, what, "rewrite it with tensor operators"))
        return
    if node.target._schema.is_mutable:
        what = f"the in-place operator {node.target} is not supported"
        refuse(refused(node, what, _cure_in_place(node), "in-place operator"))
    for value in tree_leaves(node.meta.get("val")):
        sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
        if any(isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)) for size in sizes):
            what = f"the result of {node.target} has a size that depends on the data"
            refuse(refused(node, what, "use a fixed size with a mask", "data-dependent size"))


def _cure_in_place(node: fx.Node) -> str:
    """A part of a tensor (``x[:, 0] = 0``) is written by operators without a form out of place."""
    written: Any = node.args[0]
    if written.target in _PARTS:
        return "make the whole tensor by torch.where or torch.cat instead of writing over a part"
    return "use its out-of-place form"
