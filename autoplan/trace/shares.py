"""Writes what is added to a sum over the batch as a sum over the batch.

    1 - total         ->  sum(full([samples], 1)) / samples - total
    total + penalty   ->  total + sum(penalty.expand([samples])) / samples

A piece of the batch has a term of the total; what is added to it would be added by every piece. As
a sum over samples each piece adds its share: of a constant, as in ``1 - similarity.mean()``, or of
a value that depends on no sample, as a penalty of weights. Only single numbers that learn are
rewritten: totals of the inputs alone, as numbers of valid targets, are known before any piece runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from autoplan.trace.normalise import CLASS_LOSSES, LOSSES, SUM
from autoplan.trace.rewriting import Writer, arguments

_aten = torch.ops.aten
_SUMS = {_aten.sum.default, _aten.sum.dim_IntList}
_ALONE = {
    _aten.neg.default, _aten.to.dtype, _aten.view.default, _aten.reshape.default,
    _aten.squeeze.default,
}  # fmt: skip
_PRODUCTS = {_aten.mul.Scalar, _aten.mul.Tensor}
_QUOTIENTS = {_aten.div.Scalar, _aten.div.Tensor}
_ADDING = {_aten.add.Tensor, _aten.sub.Tensor}
_FROM_NUMBER = _aten.rsub.Scalar


def share_what_is_added(graph: fx.Graph) -> bool:
    """Rewrites ``graph`` in place, whose nodes carry ``meta["batch_dims"]``.

    Returns:
        Whether there was anything to rewrite; the new nodes do not know their batch dims.
    """
    learning = _learning(graph)
    totals: dict[fx.Node, int] = {}
    changed = False
    for node in list(graph.nodes):
        if node.op != "call_function" or not _is_number(node):
            continue
        read = [each for each in node.args[:2] if isinstance(each, fx.Node) and each in totals]
        learned = [total for total in read if total in learning]
        samples = totals[read[0]] if read else _summed_samples(node)
        total = node
        if read and not _is_linear(node, read, learned):
            if len(read) > 1 or not learned or not _is_addition(node, read[0]):
                continue
            total = _with_share(Writer(graph, node), node, read[0], samples)
            learning.add(total)
            changed = True
        if samples:
            totals[total] = samples
    return changed


def _learning(graph: fx.Graph) -> set[fx.Node]:
    """What depends on a parameter that learns, other than through ``detach``."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder":
            learns = node.meta["val"].requires_grad
        else:
            learns = node.target is not _aten.detach.default and not found.isdisjoint(
                node.all_input_nodes
            )
        if learns:
            found.add(node)
    return found


def _is_number(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not value.dim() and value.is_floating_point()


def _summed_samples(node: fx.Node) -> int:
    """The samples that a call sums over; 0 where it is no sum over the batch."""
    is_loss = node.target in LOSSES or node.target in CLASS_LOSSES
    if node.target not in _SUMS and not (is_loss and arguments(node)["reduction"] == SUM):
        return 0
    operand: Any = node.args[0]
    dims = operand.meta["batch_dims"][0]
    return operand.meta["val"].shape[dims[0]] if len(dims) == 1 else 0


def _is_linear(node: fx.Node, totals: Sequence[fx.Node], learned: Sequence[fx.Node]) -> bool:
    """Whether a call of totals, of which some learn, gives one.

    Those that do not are known before any piece runs, so that others may be scaled by them.
    """
    if node.target in _PRODUCTS:
        return len(totals) == 1 or len(learned) == 1
    if node.target in _QUOTIENTS:
        return totals[0] is node.args[0] and (len(totals) == 1 or learned == totals[:1])
    return node.target in _ALONE or (node.target in _ADDING and len(totals) == 2)


def _is_addition(node: fx.Node, total: fx.Node) -> bool:
    """Whether a call adds to a total what depends on no sample, or takes it from a number."""
    if node.target not in _ADDING | {_FROM_NUMBER}:
        return False
    other = _other(node, total)
    return not isinstance(other, fx.Node) or _is_number(other)


def _other(node: fx.Node, total: fx.Node) -> Any:
    first, second = node.args[:2]
    return second if first is total else first


def _with_share(call: Writer, node: fx.Node, total: fx.Node, samples: int) -> fx.Node:
    """Puts in place of an addition that of a sum over samples, and returns it."""
    other, value = _other(node, total), total.meta["val"]
    if isinstance(other, fx.Node):
        each = call(_aten.expand.default, other, [samples])
    else:
        each = call(_aten.full.default, [samples], other, dtype=value.dtype, device=value.device)
    share = call(_aten.div.Scalar, call(_aten.sum.default, each), samples)
    if node.target is _FROM_NUMBER:
        scale = dict(zip(("alpha",), node.args[2:], strict=False))
        made = call(_aten.sub.Tensor, share, total, **scale)
    elif node.args[0] is other:
        made = call(node.target, share, total, **node.kwargs)
    else:
        made = call(node.target, total, share, **node.kwargs)
    call.put(made)
    return made
