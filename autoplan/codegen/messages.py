"""The collectives on ``tp`` that a stage runs for one microbatch, in order.

Those with which BatchNorm exchanges statistics are left out: all ranks that run them run one text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from autoplan.codegen.program import (
    BlockCall,
    Call,
    Convert,
    Function,
    Program,
    Statement,
    runs_again,
)

_MEETING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "regroup"})
_FORWARD_OF_OPS: Mapping[str, tuple[str, ...]] = {
    "vocab_parallel_cross_entropy": ("all_reduce max", "all_reduce", "all_reduce"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class StageMessages:
    """What a stage sends over ``tp``: the collective, and the local shape and dtype it ends in."""

    count: tuple[str, ...] = ()
    forward: tuple[str, ...] = ()
    backward: tuple[str, ...] = ()


def stage_messages(program: Program, index: int) -> StageMessages:
    """The messages of one stage; nothing on one rank of ``tp``, where pairs are the identity."""
    stage = program.stages[index]
    classes = {block.name: block.function for block in program.blocks}
    named = program.class_of

    def block_of(call: BlockCall) -> Function:
        return classes[named[".".join(call.path)]]

    return StageMessages(
        count=tuple(_forward(stage.count, block_of)),
        forward=tuple(_forward(stage.forward, block_of)),
        backward=tuple(_backward(stage.forward, block_of)),
    )


def _forward(
    function: Function,
    block_of: Callable[[BlockCall], Function],
    taken: Callable[[Statement], bool] = lambda _: True,
) -> Iterator[str]:
    for statement in filter(taken, function.statements):
        if isinstance(statement, BlockCall):
            yield from _forward(block_of(statement), block_of)
        elif isinstance(statement, Convert):
            yield from _meeting(statement, side=0)
        elif isinstance(statement, Call) and statement.local_op is not None:
            yield from _FORWARD_OF_OPS.get(statement.local_op, ())


def _backward(function: Function, block_of: Callable[[BlockCall], Function]) -> Iterator[str]:
    """Messages of the gradients, last statement first, each block behind what it runs again."""
    for statement in reversed(function.statements):
        if isinstance(statement, BlockCall):
            inner = block_of(statement)
            if statement.recomputed:
                yield from _forward(inner, block_of)
            else:
                yield from _forward(inner, block_of, runs_again)
            yield from _backward(inner, block_of)
        elif isinstance(statement, Convert):
            yield from _meeting(statement, side=1)


def _meeting(convert: Convert, *, side: int) -> Iterator[str]:
    kind = convert.function.split("__")[side]
    if kind in _MEETING:
        value = convert.source if side else convert.output
        yield f"{kind} {'x'.join(map(str, value.shape))} {value.dtype}"
