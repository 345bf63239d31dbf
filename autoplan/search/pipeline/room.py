"""Bytes that a rank has for what its items hold: the limit, less what passes at least.

Parts of the root behind the last block have their backward first: then all is kept. When that of
the blocks runs, what they kept of the microbatch is gone, and their gradients wait. Each of the two
moments bounds what a rank can hold; the one is taken in which more passes at least.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoplan.search.pipeline.item_prices import Elements
from autoplan.search.pipeline.model import Model
from autoplan.search.pipeline.range_ends import largest
from autoplan.search.pipeline.rank_memory import ROUNDING_BYTES
from autoplan.search.pipeline.whole import WholeCosts
from autoplan.search.regions.column import Prices

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
_ANYTHING_BYTES = 2.0**60


def widest_part(model: Model, is_block: Sequence[bool]) -> str | None:
    """The part of the root of which an operator at work holds more at least than any other region.

    What passes on a rank that has it is what it chooses at least; None where another holds as much,
    and where blocks lie behind it: it works when what is behind them is no longer kept.
    """
    least = {key: menu.least_operator_bytes() for key, menu in model.menus.items()}
    widest = max(model.keys, key=least.__getitem__)
    at = model.keys.index(widest)
    others = max((least[key] for n, key in enumerate(model.keys) if n != at), default=0.0)
    return None if any(is_block[at:]) or others >= least[widest] else widest


def late_parts(costs: WholeCosts, model: Model) -> frozenset[str]:
    """The parts behind the last block, where the backward of blocks is the fuller moment."""
    behind = parts_behind(costs, model)
    if not behind:
        return frozenset()
    memory = costs.memory
    at = next(k for k, block in zip(model.keys[::-1], costs.is_block[::-1], strict=True) if block)
    kept = Prices(forward_s=0.0, backward_input_s=0.0, backward_weight_s=0.0, kept_bytes=1.0)
    is_let_go = costs.config.stages_per_rank == 1
    first = max(model.menus[key].least_operator_bytes() for key in behind)
    first += is_let_go * sum(float(model.menus[key].least_values([kept])[0]) for key in behind)
    trained = sum(model.elements[key].least_trained for key in behind)
    late = memory.trained.gradients_made * trained + model.menus[at].least_operator_bytes()
    late += memory.least_gradient_bytes(model.elements[at].least)
    return behind if late > first else frozenset()


def parts_behind(costs: WholeCosts, model: Model) -> frozenset[str]:
    """The parts of the root behind the last block."""
    last = max((number for number, block in enumerate(costs.is_block) if block), default=None)
    return frozenset() if last is None else frozenset(model.keys[last + 1 :])


def room_bytes(
    costs: WholeCosts, model: Model, widest: str | None = None, late: Collection[str] = ()
) -> Floats:
    """For each range of items, shape (items + 1, items + 1), the bytes that there are for them.

    That is the limit less an operator at work, gradients of a block and weights gathered, each at
    its least; where ``widest`` is among them, its operator is for prices to count. A range that
    ends with parts of the root is looked at in the backward of these, which comes first, unless
    they are ``late``: then in that of blocks, where prices count what waits.
    """
    memory = costs.memory
    least = {key: menu.least_operator_bytes() for key, menu in model.menus.items()}
    each = [least[key] * (key not in late) for key in model.keys]
    made = _Units(costs, model, lambda of: memory.least_gradient_bytes(of.least))
    passing = largest(each) + largest(made.blocks)
    for stop, is_block in enumerate(costs.is_block, 1):
        if not is_block and model.keys[stop - 1] not in late:
            passing[:stop, stop] = _of_tail(each[:stop], costs.is_block[:stop])
    if widest is not None:
        at = model.keys.index(widest)
        passing[: at + 1, at + 1 :] = 0.0
    return _left(costs, model, passing)


@dataclass(frozen=True, kw_only=True, slots=True)
class Passing:
    """What passes in the backward of blocks, as its mean over blocks that prices count.

    Attributes:
        most_blocks: of the ranges that it bounds.
        let_go_blocks: of so many blocks what they kept is gone, while their gradients are reduced;
            0 looks at the moment at which a backward begins.
    """

    most_blocks: int
    let_go_blocks: int = 0


def passing_of(costs: WholeCosts) -> tuple[Passing, ...]:
    """The bounds of what passes in the backward of blocks.

    In a pipeline, ranges of as many blocks as where all ranks have nearly as many, or one more.
    Without one, all blocks, at each of the moments of ``RankMemory.reduced_bytes``.
    """
    blocks = max(1, -(-sum(costs.is_block) // costs.config.pp))
    if costs.config.pp > 1:
        return Passing(most_blocks=blocks), Passing(most_blocks=blocks + 1)
    moments = 1 + min(blocks, 2) * costs.memory.reduces_each
    return tuple(Passing(most_blocks=blocks, let_go_blocks=number) for number in range(moments))


def recomputing_room_bytes(costs: WholeCosts, model: Model, passing: Passing) -> Floats:
    """As ``room_bytes`` in the backward of blocks, where prices count what a block makes again, on
    the mean of up to ``most_blocks`` blocks, less what was let go of; beside it the least that an
    operator at work holds in any of them, and gradients of the largest. That holds for ranges with
    no more that end with a block or with parts behind the last one; others have room for anything.
    """
    made = _Units(costs, model, lambda of: costs.memory.least_gradient_bytes(of.least))
    working = [model.menus[key].least_operator_bytes() for key in model.keys]
    reduced = _Units(
        costs, model, lambda of: costs.memory.reducing_bytes(of.least, passing.let_go_blocks)
    )
    beside = _least_of_blocks(costs, working) + largest(reduced.blocks)
    room = _left(costs, model, largest(made.blocks) + beside)
    blocks = np.concatenate([[0], np.cumsum(costs.is_block)])
    blocks = blocks - blocks[:, None]
    behind = parts_behind(costs, model)
    ends = [
        key in behind or is_block for key, is_block in zip(model.keys, costs.is_block, strict=True)
    ]
    fewest = passing.most_blocks if passing.let_go_blocks else 1
    holds = (fewest <= blocks) & (blocks <= passing.most_blocks) & np.append(False, ends)
    return np.where(holds, room, _ANYTHING_BYTES)


def steps_fit(costs: WholeCosts, model: Model) -> Bools:
    """For each range of items, shape (items + 1, items + 1), whether its optimizer's step fits with
    the fewest elements: no activation is left then, so that no price counts it."""
    memory = costs.memory
    held = _Units(costs, model, lambda of: memory.held_bytes(of.least)).all()
    passing = _Units(costs, model, lambda of: memory.passing_in_step_bytes(of.least)).all()
    room = memory.limit_bytes - memory.fixed_bytes - _apart_bytes(costs)
    return held + np.minimum(passing, memory.most_step_bytes) <= room + ROUNDING_BYTES


def _least_of_blocks(costs: WholeCosts, values: Sequence[float]) -> Floats:
    """The least value of the blocks of every range of items; 0 where it has none."""
    most = max(values, default=0.0)
    less = [(most - value) * block for value, block in zip(values, costs.is_block, strict=True)]
    return largest([float(block) for block in costs.is_block]) * (most - largest(less))


def _left(costs: WholeCosts, model: Model, passing: Floats) -> Floats:
    """The limit less what passes and what is gathered at least."""
    memory = costs.memory
    room = memory.limit_bytes - memory.fixed_bytes - passing - _apart_bytes(costs)
    if memory.trained.gathered_in_flight or memory.frozen.gathered_in_flight:
        gathered = _Units(costs, model, lambda each: memory.gathered_bytes(each.least))
        room = room - gathered.root() - largest(gathered.blocks)
        if costs.config.stages_per_rank == 1:
            room = room - _second(gathered.blocks)
    return room


class _Units:
    """Least bytes of the units of a rank: of each block, and of the root of a range of items."""

    def __init__(
        self, costs: WholeCosts, model: Model, nbytes: Callable[[Elements], float]
    ) -> None:
        self._costs = costs
        each = [nbytes(model.elements[key]) for key in model.keys]
        is_block = costs.is_block
        self.blocks = [of * block for of, block in zip(each, is_block, strict=True)]
        self._parts = [of * (not block) for of, block in zip(each, is_block, strict=True)]

    def all(self) -> Floats:
        """Of all units of a range together."""
        ends = np.concatenate([[0.0], np.cumsum(self.blocks)])
        return self.root() + ends[None, :] - ends[:, None]

    def root(self) -> Floats:
        """What a parameter takes that several parts read is in the largest of them.

        The parts of several stages of a rank are units of their own.
        """
        if self._costs.config.stages_per_rank > 1:
            return largest(self._parts)
        tied = {item for items, _ in self._costs.tied for item in items}
        alone = [0.0 if item in tied else of for item, of in enumerate(self._parts)]
        ends = np.concatenate([[0.0], np.cumsum(alone)])
        readers = [of if item in tied else 0.0 for item, of in enumerate(self._parts)]
        return ends[None, :] - ends[:, None] + largest(readers)


def _apart_bytes(costs: WholeCosts) -> Floats:
    """For each range, what it holds of parameters that blocks read and no column counts.

    Which blocks a rank with several stages has, a range does not say: they hold nothing at least.
    """
    count = len(costs.is_block)
    found = np.zeros((count + 1, count + 1))
    for one in costs.apart if costs.config.stages_per_rank == 1 else ():
        readers = np.zeros(count + 1)
        for item in one.items:
            readers[item + 1 :] += 1
        found += costs.memory.held_bytes(one.unit) * (readers[None, :] > readers[:, None])
    return found


def _of_tail(values: Sequence[float], is_block: Sequence[bool]) -> Floats:
    """For each beginning of a range to the end, the largest value behind its last block."""
    behind = max((number for number, block in enumerate(is_block) if block), default=-1)
    alone = np.where(np.arange(len(values)) > behind, values, 0.0)
    return np.maximum.accumulate(alone[::-1])[::-1]


def _second(values: Sequence[float]) -> Floats:
    """The second largest value of every range of items; 0 where there is none."""
    count = len(values) + 1
    found = np.zeros((count, count))
    for first in range(count - 2):
        before = np.maximum.accumulate(values[first:-1])
        found[first, first + 2 :] = np.maximum.accumulate(np.minimum(values[first + 1 :], before))
    return found
