"""The collectives that a stage's program runs for one microbatch, in order.

Most are on ``tp``, by changes of placement and by operators whose classes are split. A BatchNorm
gathers the statistics of all data-parallel ranks, sums over them in its backward, and gathers over
``tp`` what its running statistics need of channels that are split; the last is not done again where
it runs again in the backward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from autoplan.codegen.program import (
    Axis,
    BlockCall,
    Call,
    Convert,
    Function,
    Program,
    Statement,
    Value,
    runs_again,
)

_MEETING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "regroup"})
_FORWARD_OF_OPS: Mapping[str, tuple[str, ...]] = {
    "vocab_parallel_cross_entropy": ("all_reduce max", "all_reduce", "all_reduce"),
}
_BATCH_NORM = "synced_batch_norm"
_X, _RUNNING_MEAN, _TRAINING = 0, 3, 6


@dataclass(frozen=True, slots=True)
class StageMessage:
    """A collective on a mesh axis: its kind, and the local shape and dtype it ends in."""

    axis: Literal["dp", "tp"]
    what: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StageMessages:
    """What a stage sends for a microbatch, ahead of it to count, forward and backward."""

    count: tuple[StageMessage, ...] = ()
    forward: tuple[StageMessage, ...] = ()
    backward: tuple[StageMessage, ...] = ()


def stage_messages(program: Program, index: int, sizes: Mapping[str, int]) -> StageMessages:
    """The messages of one stage.

    Args:
        sizes: ranks of ``dp`` and ``tp``; on an axis of one there are none.
    """
    stage = program.stages[index]
    walk = _Walk(program, sizes)
    return StageMessages(
        count=tuple(walk.forward(stage.count)),
        forward=tuple(walk.forward(stage.forward)),
        backward=tuple(walk.backward(stage.forward)),
    )


class _Walk:
    """Follows functions into the blocks they call."""

    def __init__(self, program: Program, sizes: Mapping[str, int]) -> None:
        self._functions = {block.name: block.function for block in program.blocks}
        self._class_of = program.class_of
        self._sizes = sizes

    def forward(self, function: Function) -> Iterator[StageMessage]:
        return self._sent(self._run(function.statements))

    def backward(self, function: Function) -> Iterator[StageMessage]:
        return self._sent(self._backward(function))

    def _sent(self, messages: Iterator[StageMessage]) -> Iterator[StageMessage]:
        return (message for message in messages if self._sizes[message.axis] > 1)

    def _run(
        self, statements: Iterable[Statement], *, again: bool = False
    ) -> Iterator[StageMessage]:
        for statement in statements:
            if isinstance(statement, BlockCall):
                yield from self._run(self._block_of(statement).statements, again=again)
            elif isinstance(statement, Convert):
                yield from _meeting(statement, side=0)
            elif isinstance(statement, Call) and statement.local_op == _BATCH_NORM:
                yield from self._statistics(statement, again)
            elif isinstance(statement, Call) and statement.local_op is not None:
                for what in _FORWARD_OF_OPS.get(statement.local_op, ()):
                    yield StageMessage("tp", what)

    def _backward(self, function: Function) -> Iterator[StageMessage]:
        """Messages of the gradients, last statement first, blocks behind what they run again."""
        for statement in reversed(function.statements):
            if isinstance(statement, BlockCall):
                inner = self._block_of(statement)
                repeated = _repeated(inner) if statement.recomputed else _made_again(inner)
                yield from self._run(repeated, again=True)
                yield from self._backward(inner)
            elif isinstance(statement, Convert):
                yield from _meeting(statement, side=1)
            elif isinstance(statement, Call) and _syncs(statement):
                yield StageMessage("dp", f"all_reduce 2x{_channels(statement)}")

    def _block_of(self, call: BlockCall) -> Function:
        return self._functions[self._class_of[".".join(call.path)]]

    def _statistics(self, call: Call, again: bool) -> Iterator[StageMessage]:
        """Of a BatchNorm; statistics of a rank's own piece are not sent."""
        if _syncs(call):
            yield StageMessage("dp", f"all_gather {2 * self._sizes['dp']}x{_channels(call)}")
        keeps = call.args[_RUNNING_MEAN] is not None
        if _trains(call) and _splits_channels(call) and keeps and not again:
            for _ in ("means", "squared deviations"):
                yield StageMessage("tp", f"all_gather {_channels(call, self._sizes['tp'])}")


def _repeated(function: Function) -> Iterable[Statement]:
    """What runs again of a block that does as a whole: no further than the last that is kept."""
    keeping = [
        number
        for number, statement in enumerate(function.statements)
        if isinstance(statement, Call) and (statement.keeps or statement.local_op)
    ]
    return function.statements[: max(keeping, default=-1) + 1]


def _made_again(function: Function) -> Iterable[Statement]:
    """What runs again of a block of which single operators do."""
    return filter(runs_again, function.statements)


def _trains(call: Call) -> bool:
    return call.args[_TRAINING] is True


def _syncs(call: Call) -> bool:
    """Whether a call is a BatchNorm with the statistics of all data-parallel ranks."""
    return call.local_op == _BATCH_NORM and _trains(call) and ("over", Axis("dp")) in call.kwargs


def _splits_channels(call: Call) -> bool:
    split = dict(call.kwargs).get("shard")
    return isinstance(split, tuple) and split[0] == 1


def _channels(call: Call, ranks: int = 1) -> str:
    """How many channels ``ranks`` ranks of ``tp`` have, and the dtype of their statistics."""
    x = call.args[_X]
    assert isinstance(x, Value)
    return f"{ranks * x.shape[1]} {'float64' if x.dtype == 'float64' else 'float32'}"


def _meeting(convert: Convert, *, side: int) -> Iterator[StageMessage]:
    kind = convert.function.split("__")[side]
    if kind in _MEETING:
        value = convert.source if side else convert.output
        yield StageMessage("tp", f"{kind} {'x'.join(map(str, value.shape))} {value.dtype}")
