"""Pipeline schedules: which actions each rank runs, and in what order.

The orders are those of ``torch.distributed.pipelining``, which are what is executed; where Megatron
has the schedule and accepts the numbers (microbatches divisible by ranks), its order is the same.
Actions have torch's letters: F forward, B the whole backward, and where a schedule splits the
backward, I the gradient of the inputs and W that of the weights.

- ``gpipe``: all forwards, then all backwards (Huang et al. 2019).
- ``1f1b``: PipeDream-flush: ``p - 1 - r`` forwards, then one forward and one backward in turn
  (Narayanan et al. 2021, section 2.2.1). Fewer microbatches than ranks are priced; torch's
  ``Schedule1F1B`` refuses them.
- ``interleaved_1f1b``: each rank has v stages, i on rank ``i % p``, and takes q microbatches
  through one of them before the next; ``2 (p - 1 - r) + (v - 1) q`` forwards come first
  (section 2.2.2). Torch cuts m microbatches into ``max(1, m // p)`` rounds of q; Megatron has
  q = p.
- ``zero_bubble``: ZB-H1 (Qi et al. 2023, section 2.1), and as in torch's
  ``ScheduleInterleavedZeroBubble`` also for v > 1: ``p - 1 - r + (v - 1) q`` forwards first, and
  W runs r backwards behind I.
- ``zbv``: two stages per rank in a V: i and ``2p - 1 - i`` on rank i (section 6).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

ScheduleName = Literal["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble", "zbv"]
ActionKind = Literal["F", "B", "I", "W"]
_IN_ROUNDS = ("interleaved_1f1b", "zero_bubble")


class ScheduleError(ValueError):
    """A schedule that does not exist for these numbers of stages, ranks and microbatches."""


class Action(NamedTuple):
    """One microbatch of one stage through one kind of compute."""

    kind: ActionKind
    stage: int
    microbatch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineShape:
    """A schedule and its sizes: ``stages`` counts the stages of the whole model.

    Raises:
        ScheduleError: the schedule cannot run these numbers.
    """

    schedule: ScheduleName
    ranks: int
    stages: int
    microbatches: int

    def __post_init__(self) -> None:
        if self.schedule not in get_args(ScheduleName):
            known = ", ".join(get_args(ScheduleName))
            raise ScheduleError(f"no schedule {self.schedule!r}; use one of {known}")
        if self.ranks < 1 or self.microbatches < 1 or self.stages < 1:
            raise ScheduleError(f"{self._words()}: use one or more of each")
        if self.stages % self.ranks:
            raise ScheduleError(f"{self._words()}: use a multiple of the ranks as stages")
        if self.schedule in ("gpipe", "1f1b") and self.stages != self.ranks:
            raise ScheduleError(f"{self._words()}: use one stage per rank, or interleaved_1f1b")
        if self.schedule == "zbv" and self.stages != 2 * self.ranks:
            raise ScheduleError(f"{self._words()}: use two stages per rank")
        if self.schedule in _IN_ROUNDS and self.microbatches % self.rounds:
            raise ScheduleError(
                f"{self._words()}: use a multiple of {self.ranks} microbatches (they go in "
                f"{self.rounds} equal rounds)"
            )

    def _words(self) -> str:
        return (
            f"{self.schedule} with {self.stages} stages on {self.ranks} ranks and "
            f"{self.microbatches} microbatches"
        )

    @property
    def stages_per_rank(self) -> int:
        return self.stages // self.ranks

    @property
    def rounds(self) -> int:
        """Equal shares of the microbatches, that go through all stages of a rank in turn."""
        return max(1, self.microbatches // self.ranks) if self.schedule in _IN_ROUNDS else 1

    @property
    def round_microbatches(self) -> int:
        """Microbatches that a rank takes through one of its stages before the next stage (q)."""
        return self.microbatches // self.rounds

    @property
    def warmup_step(self) -> int:
        """Forwards that a rank runs before its first backward more than the rank after it."""
        return 2 if self.schedule == "interleaved_1f1b" else 1

    @property
    def splits_backward(self) -> bool:
        return self.schedule in ("zero_bubble", "zbv")

    def rank_of(self, stage: int) -> int:
        """The rank that holds a stage."""
        if self.schedule == "zbv" and stage >= self.ranks:
            return 2 * self.ranks - 1 - stage
        return stage % self.ranks


def rank_actions(shape: PipelineShape, rank: int) -> list[Action]:
    """The actions of one rank, in order."""
    if shape.schedule == "gpipe":
        microbatches = range(shape.microbatches)
        return [Action(kind, rank, i) for kind in ("F", "B") for i in microbatches]
    if shape.schedule == "zbv":
        actions = _v_shaped(shape.ranks, shape.microbatches, rank)
        return [action for action in actions if action.microbatch < shape.microbatches]
    return list(_one_forward_one_backward(shape, rank))


def _one_forward_one_backward(shape: PipelineShape, rank: int) -> Iterator[Action]:
    total = shape.microbatches * shape.stages_per_rank
    warmup = (shape.stages_per_rank - 1) * shape.round_microbatches
    warmup = min(warmup + shape.warmup_step * (shape.ranks - 1 - rank), total)
    forwards = [_local_action(shape, rank, index, backward=False) for index in range(total)]
    backwards = [_local_action(shape, rank, index, backward=True) for index in range(total)]
    for stage, microbatch in forwards[:warmup]:
        yield Action("F", stage, microbatch)
    for index, backward in enumerate(backwards):
        if warmup + index < total:
            yield Action("F", *forwards[warmup + index])
        yield Action("I" if shape.splits_backward else "B", *backward)
        if shape.splits_backward and index >= rank:
            yield Action("W", *backwards[index - rank])
    if shape.splits_backward:
        for backward in backwards[max(0, total - rank) :]:
            yield Action("W", *backward)


def _local_action(
    shape: PipelineShape, rank: int, index: int, *, backward: bool
) -> tuple[int, int]:
    """Stage and microbatch of the forward or backward that a rank runs as its ``index``-th."""
    in_round = shape.round_microbatches * shape.stages_per_rank
    local, microbatch = divmod(index % in_round, shape.round_microbatches)
    if backward:
        local = shape.stages_per_rank - 1 - local
    return (
        local * shape.ranks + rank,
        index // in_round * shape.round_microbatches + microbatch,
    )


def _v_shaped(ranks: int, microbatches: int, rank: int) -> Iterator[Action]:
    """ZB-V for enough microbatches to fill the pipeline; the caller drops those that are not."""
    filled = max(2 * ranks - 1, microbatches)
    down, up = rank, 2 * ranks - 1 - rank
    seen: dict[tuple[ActionKind, int], int] = {}

    def run(stage: int, *kinds: ActionKind) -> Iterator[Action]:
        for kind in kinds:
            index = seen.get((kind, stage), 0)
            seen[kind, stage] = index + 1
            yield Action(kind, stage, index)

    for _ in range(2 * (ranks - rank) - 1):
        yield from run(down, "F")
    for _ in range(rank):
        yield from run(up, "F")
        yield from run(down, "F")
    for _ in range(ranks - rank):
        yield from run(up, "F", "I", "W")
    while seen.get(("F", up), 0) < filled:
        if seen["F", down] < filled:
            yield from run(down, "F")
        yield from run(down, "I", "W")
        yield from run(up, "F", "I", "W")
    for _ in range(rank):
        yield from run(down, "I")
        yield from run(up, "I")
    for _ in range(ranks - rank):
        yield from run(down, "I", "W")
    for stage in (up, down):
        while seen.get(("W", stage), 0) < filled:
            yield from run(stage, "W")
