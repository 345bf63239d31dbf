"""A whole plan of one configuration, and its exact value: every stage's items and their columns.

This is the one place where a step's time and memory are put together; the search, its bounds and
the reports are about the numbers given here. With stages s,

    step_s = max_s head_s + max_s (last_backward_end_s + tail_s + optimizer_s of all its rank)

where the ends are those of the simulated schedule (``cost_models.pipeline``), messages between
stages running beside compute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autoplan.search.pipeline.configs import Config
from autoplan.search.pipeline.loads import Load, Placed, Unit, load_of
from autoplan.search.pipeline.rank_memory import RankMemory
from autoplan.search.pipeline.stage_times import StageClock, StageSeconds
from autoplan.search.regions.column import Column
from autoplan.search.regions.menus import Crossing
from cost_models.memory import MemoryBreakdown
from cost_models.pipeline import PipelineTime, simulate
from cost_models.schedule_memory import peak_held
from cost_models.schedule_times import StageTimes


@dataclass(frozen=True, kw_only=True, slots=True)
class StageContent:
    """One stage: the items from ``first`` on, with the column of each."""

    first: int
    columns: tuple[Column, ...]

    @property
    def stop(self) -> int:
        return self.first + len(self.columns)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hop:
    """Seconds of a message of so many bytes: ``fixed_s + bytes * per_byte_s``."""

    fixed_s: float
    per_byte_s: float

    def seconds(self, nbytes: float) -> float:
        return self.fixed_s + nbytes * self.per_byte_s if nbytes else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Apart:
    """A parameter with the items that read it, and its elements on one rank."""

    items: tuple[int, ...]
    unit: Unit


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeCosts:
    """What any plan of one configuration costs.

    Attributes:
        is_block: for each item of the model, whether it is a block.
        cuts: behind each item but the last.
        hops: for each rank of the pipeline, the way to the next one.
        shared_s: what every stage runs beside its items.
        split_element_s: of a microbatch, what taking gradients of weights apart from the backward
            adds for one trained element, where the schedule does.
        tied: parts of the root that read one trained parameter, with its elements on a rank.
        apart: parameters that blocks read and other items too, which columns do not count.
    """

    config: Config
    clock: StageClock
    memory: RankMemory
    is_block: tuple[bool, ...]
    cuts: tuple[Crossing, ...]
    hops: tuple[Hop, ...]
    shared_s: float
    split_element_s: float = 0.0
    tied: tuple[tuple[tuple[int, ...], float], ...] = ()
    apart: tuple[Apart, ...] = ()

    def apart_between(self, first: int, stop: int) -> Iterator[Apart]:
        """Those that items of a range read."""
        return (one for one in self.apart if any(first <= item < stop for item in one.items))


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeValue:
    """The exact value of a plan; lists go by stage, ``memory`` by rank.

    ``sent`` is what was simulated.
    """

    step_s: float
    loads: tuple[Load, ...]
    seconds: tuple[StageSeconds, ...]
    sent: tuple[StageTimes, ...]
    head_s: float
    times: PipelineTime
    memory: tuple[MemoryBreakdown, ...]

    def fits(self, limit_bytes: float) -> bool:
        return all(memory.total <= limit_bytes for memory in self.memory)


def value_of_whole(costs: WholeCosts, stages: Sequence[StageContent]) -> WholeValue:
    """The value of a plan, stage by stage."""
    config = costs.config
    loads = [_load(costs, stage) for stage in stages]
    seconds = [costs.clock.seconds(load) for load in loads]
    sent = tuple(_times(costs, stages, number, each) for number, each in enumerate(seconds))
    times = simulate(
        config.shape.schedule,
        sent,
        config.num_microbatches,
        config.pp,
        blocking_sends=False,
    )
    head_s = max(each.head_s for each in seconds)
    optimizer_s = [0.0] * config.pp
    for number, each in enumerate(seconds):
        optimizer_s[config.shape.rank_of(number)] += each.optimizer_s
    ends = (
        end_s + each.tail_s + optimizer_s[config.shape.rank_of(number)]
        for number, (end_s, each) in enumerate(zip(times.last_backward_end_s, seconds, strict=True))
    )
    return WholeValue(
        step_s=head_s + max(ends),
        loads=tuple(loads),
        seconds=tuple(seconds),
        sent=sent,
        head_s=head_s,
        times=times,
        memory=_memory(costs, loads),
    )


def _load(costs: WholeCosts, stage: StageContent) -> Load:
    counted: Counter[tuple[Column, bool, bool]] = Counter()
    is_block = costs.is_block[stage.first : stage.stop]
    last = max((number for number, block in enumerate(is_block) if block), default=-1)
    for number, column in enumerate(stage.columns):
        counted[column, is_block[number], number > last] += 1
    leaving = costs.cuts[stage.stop - 1].forward_bytes if stage.stop <= len(costs.cuts) else 0.0
    return load_of(
        (
            Placed(column=column, count=count, is_block=of_block, is_tail=is_tail)
            for (column, of_block, is_tail), count in counted.items()
        ),
        forward_s=costs.shared_s,
        kept_bytes=leaving,
        twice_elements=_twice(costs, stage),
        apart=[one.unit for one in costs.apart_between(stage.first, stage.stop)],
        split_element_s=costs.split_element_s,
    )


def _twice(costs: WholeCosts, stage: StageContent) -> float:
    """Elements of parameters that several items of a stage read: they are stored once."""
    total = 0.0
    for items, elements in costs.tied:
        readers = sum(stage.first <= item < stage.stop for item in items)
        total += elements * max(0, readers - 1)
    return total


def _times(
    costs: WholeCosts, stages: Sequence[StageContent], number: int, seconds: StageSeconds
) -> StageTimes:
    shape = costs.config.shape
    stage, last = stages[number], len(stages) - 1
    send_forward_s = send_backward_s = 0.0
    if number < last:
        hop = costs.hops[shape.rank_of(number)]
        send_forward_s = hop.seconds(costs.cuts[stage.stop - 1].forward_bytes)
    if number > 0:
        hop = costs.hops[shape.rank_of(number - 1)]
        send_backward_s = hop.seconds(costs.cuts[stage.first - 1].backward_bytes)
    return StageTimes(
        forward_s=seconds.forward_s,
        backward_input_s=seconds.backward_input_s,
        backward_weight_s=seconds.backward_weight_s,
        send_forward_s=send_forward_s,
        send_backward_s=send_backward_s,
    )


def _memory(costs: WholeCosts, loads: Sequence[Load]) -> tuple[MemoryBreakdown, ...]:
    shape = costs.config.shape
    held = peak_held(shape, [load.kept_bytes for load in loads], until_weight=True)
    by_rank: list[list[Load]] = [[] for _ in range(shape.ranks)]
    for number, load in enumerate(loads):
        by_rank[shape.rank_of(number)].append(load)
    return tuple(
        costs.memory.breakdown(of_rank, float(np.ceil(nbytes)))
        for of_rank, nbytes in zip(by_rank, held, strict=True)
    )
