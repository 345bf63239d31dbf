"""Where the elements that a dropout draws for lie, on this rank, and the number of the dropout.

Blocks of one kind share their code: it numbers from the first dropout of the block, which every
instance knows.
"""

from __future__ import annotations

from autoplan.codegen.choices import Choices
from autoplan.codegen.program import DRAWS, DrawNumber, Expression
from autoplan.sharding.placement import Placement, Shard
from autoplan.trace.graph import OpNode, Ref


def draw_arguments(
    choices: Choices, node: OpNode, placement: Placement
) -> tuple[tuple[str, Expression], ...]:
    """What ``runtime.dropout`` is told of a dropout whose result is placed so on ``tp``."""
    found: list[tuple[str, Expression]] = [("draws", DRAWS), ("number", _number(choices, node))]
    splits = {"batch": choices.layout.placements[Ref(node.name)], "shard": placement}
    for key, split in splits.items():
        if isinstance(split, Shard):
            found.append((key, (split.dim, split.parts)))
    return tuple(found)


def _number(choices: Choices, node: OpNode) -> Expression:
    number, block = choices.draw_numbers[node.name], choices.graph.block_of.get(node.name)
    return number if block is None else DrawNumber(number - choices.draws_before[block.path])
