"""From an equation to the strategies of one operator on one mesh axis.

Splitting one letter determines everything. Where a tensor has the letter, it is sharded there. An
output without it is a sum over the ranks: partial. An operand without it is read whole by every
rank, and every rank computes a term of its gradient, so its gradient is partial; unless it is added
to a result that is itself partial: then it enters as a partial, once, and its gradient is whole.

On the batch axes only the batch is split. On ``tp`` the batch is, where its ranks share samples; a
letter that is not the batch but shares a dim with it anywhere is left alone. How many samples there
are is not asked: who takes such a strategy sees to it that the ranks divide them. On ``cp`` every
letter is offered, whatever it shares a dim with: which one is the tokens, ``sharding.context``
knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from autoplan.sharding.equation import Dims, Equation, extent
from autoplan.sharding.mesh import MeshAxis
from autoplan.sharding.placement import Partial, Placement, Replicate, Shard, divides
from autoplan.sharding.strategies import Port, Strategy
from autoplan.trace.graph import TensorMeta

REPLICATE = "replicate"
PARTIAL = "partial"

_WHOLE = Port(Replicate(), Replicate())
_TERM = Port(Partial(), Replicate())


def replicate(operands: int, outputs: int) -> Strategy:
    """Every rank computes the whole operator."""
    return Strategy(
        label=REPLICATE,
        inputs=(_WHOLE,) * operands,
        outputs=(Replicate(),) * outputs,
        splits_work=False,
    )


def strategies(
    equation: Equation,
    inputs: Sequence[TensorMeta],
    outputs: Sequence[TensorMeta],
    axis: MeshAxis,
    parts: Mapping[str, Sequence[int]] | None = None,
) -> tuple[Strategy, ...]:
    """All strategies that the equation allows: replicate, one per letter, partial ones.

    Truth values have no sum that is one, so they are never partial.

    Args:
        inputs, outputs: the operands and results, at global shapes.
        parts: letters that are also offered as that many equal parts, each split over the ranks.
    """
    offered = [replicate(len(inputs), len(outputs))]
    if axis.size > 1:
        offered += _split(equation, (*inputs, *outputs), axis, parts or {})
        if all(meta.dtype != "bool" for meta in outputs):
            offered += _partial(equation)
    return tuple(offered)


def _split(
    equation: Equation,
    tensors: Sequence[TensorMeta],
    axis: MeshAxis,
    parts: Mapping[str, Sequence[int]],
) -> Iterator[Strategy]:
    for letter in equation.letters:
        carried = _carried(equation, letter, tensors)
        if letter in equation.whole or not _allowed(equation, letter, carried, axis):
            continue
        if any(carried) and axis.name == "tp":
            yield _strategy(equation, letter, 1)
            continue
        for count in dict.fromkeys((1, *parts.get(letter, ()))):
            if not equation.sizes[letter] or equation.sizes[letter] % (count * axis.size):
                continue
            made = _strategy(equation, letter, count)
            placements = (*(port.placement for port in made.inputs), *made.outputs)
            if all(
                divides(placement, meta.shape, axis.size)
                for placement, meta in zip(placements, tensors, strict=True)
            ):
                yield made


def _carried(equation: Equation, letter: str, tensors: Sequence[TensorMeta]) -> list[bool]:
    """For each dim that a letter is in, whether it follows the batch."""
    return [
        dim in meta.batch_dims
        for dims, meta in zip((*equation.inputs, *equation.outputs), tensors, strict=True)
        for dim, letters in enumerate(dims)
        if letter in letters
    ]


def _allowed(equation: Equation, letter: str, carried: Sequence[bool], axis: MeshAxis) -> bool:
    if axis.splits_tokens:
        return True
    if axis.splits_batch:
        return all(carried)
    shares = axis.shares_samples and letter not in equation.only_batch_axes
    return not any(carried) or (shares and all(carried))


def _strategy(equation: Equation, letter: str, count: int) -> Strategy:
    local_op = equation.local_ops.get(letter)
    completes = local_op is not None and local_op.completes
    outputs = tuple(
        _shard(dims, letter, count, equation.sizes) or (Replicate() if completes else Partial())
        for dims in equation.outputs
    )
    summed = all(placement == Partial() for placement in outputs)
    inputs = []
    for position, dims in enumerate(equation.inputs):
        shard = _shard(dims, letter, count, equation.sizes)
        if shard is not None:
            inputs.append(Port(shard, shard))
        elif summed and position in equation.additive:
            inputs.append(_TERM)
        else:
            inputs.append(Port(Replicate(), Partial()))
    return Strategy(
        label=letter if count == 1 else f"{letter}/{count}",
        inputs=tuple(inputs),
        outputs=outputs,
        splits_work=True,
        local_op=local_op.name if local_op else None,
    )


def _shard(dims: Dims, letter: str, count: int, sizes: Mapping[str, int]) -> Shard | None:
    for dim, letters in enumerate(dims):
        if letter in letters:
            return Shard(dim, extent(letters[: letters.index(letter)], sizes) * count)
    return None


def _partial(equation: Equation) -> Iterator[Strategy]:
    for group in equation.linear:
        outputs: tuple[Placement, ...] = (Partial(),) * len(equation.outputs)
        yield Strategy(
            label=PARTIAL if len(equation.linear) == 1 else f"{PARTIAL}.{min(group)}",
            inputs=tuple(
                _TERM if position in group else Port(Replicate(), Partial())
                for position in range(len(equation.inputs))
            ),
            outputs=outputs,
            splits_work=False,
        )
