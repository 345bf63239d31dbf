"""Bags of rows of a table as one operator, ``autoplan::bags``; gradients of tables are dense.

``F.embedding_bag`` of ``[samples, length]`` numbers flattens them and counts off where each bag
starts. That hides the samples: a rank with some of them would count other starts. The operator
takes the numbers as they are. Where bags start at offsets that the model is given, it takes those.

Sparse gradients become dense ones of the same values: the optimizers that take both kinds make the
same step of either (SparseAdam takes no dense ones, and says so). Tables whose rows the forward
itself shortens (``max_norm``) are refused: which rows it shortens depends on the whole batch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from autoplan.trace.refusals import Refuse, refused
from autoplan.trace.rewriting import arguments

_LIBRARY = torch.library.Library("autoplan", "FRAGMENT")
_LIBRARY.define(
    "bags(Tensor table, Tensor ids, Tensor? offsets, Tensor? weights, str mode, int padding_idx, "
    "bool include_last_offset) -> Tensor"
)

_aten = torch.ops.aten
_MODES = ("sum", "mean", "max")


def bags(
    table: Tensor,
    ids: Tensor,
    offsets: Tensor | None,
    weights: Tensor | None,
    mode: str,
    padding_idx: int,
    include_last_offset: bool,
) -> Tensor:
    """Sums, means or maxima of rows of a table.

    Args:
        table: ``[rows, width]``.
        ids: ``[samples, length]``, or ``[all]`` with ``offsets``.
        offsets: where each bag starts in ``ids``, ``[samples]``.
        weights: of every entry of ``ids``, for sums.
        mode: ``sum``, ``mean`` or ``max``.
        padding_idx: a row that does not count; none if negative.
        include_last_offset: whether ``offsets`` ends with the end of the last bag.

    Returns:
        ``[samples, width]``.
    """
    return F.embedding_bag(
        ids,
        table,
        offsets,
        mode=mode,
        per_sample_weights=weights,
        include_last_offset=include_last_offset,
        padding_idx=None if padding_idx < 0 else padding_idx,
    )


_LIBRARY.impl("bags", bags, "CompositeImplicitAutograd")
BAGS = torch.ops.autoplan.bags.default


def write_lookups(graph: fx.Graph, refuse: Refuse) -> None:
    """Rewrites the lookups of an exported graph in place.

    Args:
        refuse: told of embeddings with ``max_norm``, which are then left without it.
    """
    for node in list(graph.nodes):
        if node.target is _aten.embedding_renorm_.default:
            what = "an embedding with max_norm writes over its weight in the forward"
            what = f"{what}, which is not supported"
            cure = "leave max_norm out and shorten the rows after each optimizer step"
            refuse(refused(node, what, cure, "parameter mutation"))
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        if node.target in (_aten.embedding.default, _aten.embedding_bag.padding_idx):
            _make_dense(node)
        if node.target is _aten.embedding_bag.padding_idx:
            _write_bags(graph, node, refuse)


def _make_dense(node: fx.Node) -> None:
    given = arguments(node)
    if given["sparse"]:
        node.args, node.kwargs = tuple({**given, "sparse": False}.values()), {}


def _write_bags(graph: fx.Graph, node: fx.Node, refuse: Refuse) -> None:
    """Bags whose gradients are scaled by how often a row is read stay as they are."""
    given = arguments(node)
    results = [user for user in node.users if user.users]
    if given["scale_grad_by_freq"] or any(user.args[1] != 0 for user in results):
        return
    ids, offsets = _unflattened(given)
    weights = given["per_sample_weights"]
    if offsets is None and weights is not None:
        weights = _weights_by_sample(weights, ids)
        if weights is None:
            what = "weights of an embedding bag in another shape than its ids are not supported"
            refuse(refused(node, what, "give both as [samples, length]"))
            return
    padding = given["padding_idx"]
    with graph.inserting_before(node):
        made = graph.call_function(
            BAGS,
            (
                given["weight"],
                ids,
                offsets,
                weights,
                _MODES[given["mode"]],
                -1 if padding is None else padding % given["weight"].meta["val"].shape[0],
                given["include_last_offset"],
            ),
        )
    made.meta = {**node.meta, "val": node.meta["val"][0]}
    for user in results:
        user.replace_all_uses_with(made)


def _unflattened(given: dict[str, Any]) -> tuple[fx.Node, fx.Node | None]:
    """The numbers by sample, without offsets; as they are where the model gives offsets."""
    flat, offsets = given["indices"], given["offsets"]
    if flat.target is _aten.reshape.default and offsets.target is _aten.arange.start_step:
        ids, total = flat.args[0], flat.meta["val"].shape[0]
        shape = ids.meta["val"].shape
        if len(shape) == 2 and tuple(offsets.args) == (0, total, shape[1]):
            return ids, None
    return flat, offsets


def _weights_by_sample(flat: fx.Node, ids: fx.Node) -> fx.Node | None:
    """Weights by sample: what was flattened, if it has the shape of the numbers."""
    source: Any = flat.args[0] if flat.target is _aten.reshape.default else None
    if source is None or source.meta["val"].shape != ids.meta["val"].shape:
        return None
    return source
