"""What a second of each rank counts in the lower bound of a step (``cost_models.schedule_paths``).

The step takes at least ``sum over ranks of share + max over ranks of extra``, both linear in the
times of a rank's stages; its ``share`` is what the path of every rank counts of it, its ``extra``
what its own path counts beyond that. Where a rank has several stages, the items are dealt to all
stages of the model evenly (``dealt``). Blocks at one *place* (counted from the end of their stage)
run alike in all stages of a rank: their weights are those of the average stage. Those of a part of
the root are those of the stage that has it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cost_models.critical_path import CriticalPath
from cost_models.schedule_memory import held_microbatches
from cost_models.schedule_paths import StageCounts, paths
from cost_models.schedules import PipelineShape

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Counted(NamedTuple):
    """How often seconds of a microbatch's forward and of both parts of its backward count."""

    forward: float
    backward_input: float
    backward_weight: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """How often seconds of one rank count.

    Attributes:
        stages: of each stage of the rank, in the model's order.
        forward_sends, backward_sends: messages of all its stages to the next stage and back.
    """

    stages: tuple[Counted, ...]
    forward_sends: int
    backward_sends: int

    @property
    def backwards(self) -> float:
        """Backwards of a stage, all stages of the rank counted."""
        return sum(counted.backward_input for counted in self.stages) / len(self.stages)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankObjective:
    """The two objectives of one rank.

    Attributes:
        backwards: how often a backward of its stages counts in both of the rank's own: prices of
            memory are for as many seconds.
        held: microbatches that each of its stages holds activations of at its fullest moment.
        ends_step: what follows its last backward counts.
        ends_in_root: that backward is of the stage that has the rank's parts of the root.
    """

    share: Weights
    extra: Weights
    backwards: float
    held: tuple[int, ...]
    ends_step: bool
    ends_in_root: bool


def objectives(shape: PipelineShape) -> tuple[RankObjective, ...]:
    """The objectives of all ranks."""
    found, held = [], held_microbatches(shape, until_weight=True)
    for path in paths(shape):
        own = [stage for stage in range(shape.stages) if shape.rank_of(stage) == path.rank]
        ends_step = path.rank == path.ends_at == 0
        share, extra = _weights(path.base, own), _weights(path.extra, own)
        found.append(
            RankObjective(
                share=share,
                extra=extra,
                backwards=share.backwards + extra.backwards,
                held=tuple(held[held[:, own].sum(axis=1).argmax(), own].tolist()),
                ends_step=ends_step,
                ends_in_root=ends_step,
            )
        )
    return tuple(found)


def along(
    shape: PipelineShape, path: CriticalPath, known: tuple[RankObjective, ...]
) -> tuple[RankObjective, ...]:
    """The objectives of one path alone, say that of a plan: no step is shorter than it is."""
    nothing = Counted(0.0, 0.0, 0.0)
    found = []
    for rank, objective in enumerate(known):
        own = [stage for stage in range(shape.stages) if shape.rank_of(stage) == rank]
        none = Weights(stages=(nothing,) * len(own), forward_sends=0, backward_sends=0)
        found.append(
            replace(
                objective,
                share=_weights(path, own),
                extra=none,
                ends_step=path.ends_at in own,
                ends_in_root=path.ends_at in own and path.ends_at in (0, shape.stages - 1),
            )
        )
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Row:
    """The items of a model, in order, as far as weights depend on them.

    Attributes:
        is_block: of each item.
        shape: the schedule that runs them.
    """

    is_block: tuple[bool, ...]
    shape: PipelineShape

    def means(self, values: Floats, *, of_blocks: bool) -> Floats:
        """No more than the means of values of stages, over those that have a block at some place of
        a rank, or a part of the root.

        Args:
            values: of shape (ranks, stages of a rank, any).

        Returns:
            Array of shape (ranks, any).
        """
        if self.shape.stages_per_rank == 1:
            return values[:, 0]
        return (self._averages[of_blocks] @ values).min(axis=1)

    @cached_property
    def _averages(self) -> tuple[Floats, Floats]:
        """What stages count for at each place, of parts of the root and of blocks; of shape (ranks,
        places, stages of a rank). Where a rank has no such items, every stage is a place."""
        found = []
        for of_blocks in (False, True):
            ranks = range(self.shape.ranks)
            of_ranks = [self._average(rank, of_blocks=of_blocks) for rank in ranks]
            most = max(len(rows) for rows in of_ranks)
            found.append(np.array([rows + rows[:1] * (most - len(rows)) for rows in of_ranks]))
        return found[0], found[1]

    def _average(self, rank: int, *, of_blocks: bool) -> list[list[float]]:
        stages = range(self.shape.stages_per_rank)
        by_place: dict[int, list[int]] = {}
        for stage, place in self.places(rank):
            if (place >= 0) == of_blocks:
                by_place.setdefault(place, []).append(stage)
        alike = list(by_place.values()) or [[stage] for stage in stages]
        return [[found.count(stage) / len(found) for stage in stages] for found in alike]

    def places(self, rank: int) -> list[tuple[int, int]]:
        """For each item of a rank with several stages, its stage and its place; -1 in the root."""
        found: list[tuple[int, int]] = []
        for stage, size in enumerate(self.sizes(rank)):
            first = self._first[stage * self.shape.ranks + rank]
            place = sum(self.is_block[first : first + size])
            for block in self.is_block[first : first + size]:
                place -= block
                found.append((stage, place if block else -1))
        return found

    def is_alike(self, rank: int) -> bool:
        """Whether a rank has several stages, and all its blocks at one place of them."""
        if self.shape.stages_per_rank == 1:
            return False
        return len({place for _, place in self.places(rank) if place >= 0}) == 1

    def sizes(self, rank: int) -> tuple[int, ...]:
        """How many items each stage of a rank has, where it has several."""
        return self._dealt[rank :: self.shape.ranks]

    def lengths(self, rank: int) -> Sequence[int]:
        """How many items a rank may have."""
        if self.shape.stages_per_rank == 1:
            return range(1, len(self.is_block) - self.shape.ranks + 2)
        return (sum(self.sizes(rank)),)

    def cuts(self, longest: int) -> tuple[Ints, Ints]:
        """The least and the most that each cut can be if no rank has more than ``longest`` items;
        both from the begin of the first rank to the end of the last."""
        items, (least, most) = len(self.is_block), self.length_limits
        low, high = np.append(0, least.cumsum()), np.append(0, np.minimum(longest, most).cumsum())
        return np.maximum(low, items - high[-1] + high), np.minimum(high, items - low[-1] + low)

    @cached_property
    def length_limits(self) -> tuple[Ints, Ints]:
        """The fewest and the most items of each rank; it may have any number between."""
        lengths = [self.lengths(rank) for rank in range(self.shape.ranks)]
        return np.array([of[0] for of in lengths]), np.array([of[-1] for of in lengths])

    @cached_property
    def fewest_blocks(self) -> Ints:
        """How many blocks each rank has at least."""
        ranks = range(self.shape.ranks)
        if self.shape.stages_per_rank == 1:
            return np.zeros(len(ranks), dtype=int)
        return np.array([sum(place >= 0 for _, place in self.places(rank)) for rank in ranks])

    @cached_property
    def _dealt(self) -> tuple[int, ...]:
        sizes = dealt(self.is_block, self.shape.stages)
        if sizes is None:
            raise ValueError(f"{len(self.is_block)} items do not go evenly into {self.shape}")
        return sizes

    @cached_property
    def _first(self) -> tuple[int, ...]:
        """The first item of each stage."""
        return (0, *itertools.accumulate(self._dealt))


def dealt(is_block: Sequence[bool], stages: int) -> tuple[int, ...] | None:
    """How many items each of several stages a rank gets; None where they do not come out even.

    All have as many blocks, and what is before the first and behind the last block goes with them;
    or all have as many items.
    """
    items, blocks = len(is_block), sum(is_block)
    if blocks and blocks % stages == 0:
        sizes = [blocks // stages] * stages
        sizes[0] += is_block.index(True)
        sizes[-1] += items - sum(sizes)
        return tuple(sizes)
    return (items // stages,) * stages if items % stages == 0 else None


def _weights(counts: StageCounts, own: Sequence[int]) -> Weights:
    return Weights(
        stages=tuple(
            Counted(
                float(counts.forward[stage]),
                float(counts.backward_input[stage]),
                float(counts.backward_weight[stage]),
            )
            for stage in own
        ),
        forward_sends=sum(int(counts.forward_sends[stage]) for stage in own),
        backward_sends=sum(int(counts.backward_sends[stage]) for stage in own),
    )
