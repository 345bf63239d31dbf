"""Operators that run by what they know of the whole: dropout and BatchNorm.

A dropout is told where its elements lie on this rank, and its number. Blocks of one kind share
their code: it numbers from the first dropout of the block, which every instance knows. A BatchNorm
is told over which ranks its statistics are taken, if not of its own piece. Neither does in
evaluation what it does in training, which ``DRAWS`` tells.
"""

from __future__ import annotations

from autoplan.codegen.choices import Choices
from autoplan.codegen.operators import is_dropout
from autoplan.codegen.program import DRAWS, Axis, DrawNumber, Expression
from autoplan.sharding.placement import Placement, Shard
from autoplan.sharding.rules.batch_norm import BATCH_NORM, syncs_statistics
from autoplan.trace.graph import OpNode, Ref

Arguments = tuple[tuple[str, Expression], ...]


def stand_in(choices: Choices, node: OpNode, placement: Placement) -> tuple[str, Arguments] | None:
    """The function of the runtime that runs a node, and what it is told; None for other operators.

    Args:
        placement: of the result on ``tp``.
    """
    batch = choices.layout.placements[Ref(node.name)]
    shard = _split("shard", placement)
    if is_dropout(node):
        told = ("draws", DRAWS), ("number", _number(choices, node))
        return "invariant_dropout", (*told, *_split("batch", batch), *shard)
    if node.target == BATCH_NORM:
        syncs = choices.dp > 1 and isinstance(batch, Shard) and syncs_statistics(node)
        over = (("over", Axis("dp")),) if syncs else ()
        return "synced_batch_norm", (("draws", DRAWS), *over, *shard)
    return None


def _split(name: str, placement: Placement) -> Arguments:
    if not isinstance(placement, Shard):
        return ()
    return ((name, (placement.dim, placement.parts)),)


def _number(choices: Choices, node: OpNode) -> Expression:
    number, block = choices.draw_numbers[node.name], choices.graph.block_of.get(node.name)
    return number if block is None else DrawNumber(number - choices.draws_before[block.path])
