"""Which meshes, ZeRO stages, microbatches and schedules are worth planning for a job.

The axes lie on the devices from the inside out: ``tp`` ranks are neighbours, then come those of
``cp``, of one of ``pp`` and ``dp``, and of the other (``outermost``). ``gpipe`` is no faster than
``1f1b`` by the cost model and holds more, so it is tried only where it is pinned. In a pipeline,
ZeRO 2 and 3 hold and send what ZeRO 1 does (``cost_models.zero``): likewise. Interleaving takes
microbatches in whole rounds of all ranks, and as many items for each stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from autoplan.job import Job
from autoplan.plan import MeshPlan
from autoplan.search.exchange_costs import cp_ranks_per_node
from autoplan.search.pins import divisors
from autoplan.search.pipeline.objectives import dealt
from cost_models.schedules import PipelineShape, ScheduleError, ScheduleName

MOST_STAGES_PER_RANK = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Everything that is decided about a whole step: its mesh, batch cut and schedule.

    Attributes:
        cp: ranks that share the samples of a data-parallel rank and split their tokens.
        replicas: groups of the ranks of ``dp`` and ``cp`` that each hold all that ZeRO splits.
        microbatch: samples per data-parallel rank.
        schedule: None without a pipeline.
    """

    pp: int
    dp: int
    tp: int
    zero: int
    replicas: int
    microbatch: int
    num_microbatches: int
    schedule: ScheduleName | None
    stages_per_rank: int
    outermost: Literal["pp", "dp"]
    cp: int = 1

    @property
    def mesh(self) -> MeshPlan:
        return MeshPlan(pp=self.pp, dp=self.dp, cp=self.cp, tp=self.tp, outermost=self.outermost)

    @property
    def state_ranks(self) -> int:
        """Ranks of ``dp`` and ``cp``: they have the same weights, whose gradients they sum."""
        return self.dp * self.cp

    @property
    def shards(self) -> int:
        """Those of them that share what ZeRO splits."""
        return self.state_ranks // self.replicas

    @property
    def shape(self) -> PipelineShape:
        """The schedule with its sizes; one stage's microbatches in turn without a pipeline."""
        return PipelineShape(
            schedule=self.schedule or "1f1b",
            ranks=self.pp,
            stages=self.pp * self.stages_per_rank,
            microbatches=self.num_microbatches,
        )

    def state_ranks_per_node(self, gpus_per_node: int) -> int:
        """Ranks with the same weights that share a node, in the worst placed group."""
        return _state_ranks_per_node(
            gpus_per_node, self.tp, self.cp, self.pp, self.dp, self.outermost
        )

    def hop_stays_in_node(self, rank: int, gpus_per_node: int) -> bool:
        """Whether ``pp`` ranks ``rank`` and the next one are in one node, for all groups."""
        stride = self.tp * self.cp * (self.dp if self.outermost == "pp" else 1)
        if stride >= gpus_per_node or gpus_per_node % stride:
            return False
        per_node = gpus_per_node // stride
        return rank // per_node == (rank + 1) % self.pp // per_node


def configs(
    job: Job,
    degrees: tuple[int, ...],
    is_block: tuple[bool, ...],
    *,
    mixes_batch: bool,
    interleaves: bool,
    one_microbatch: bool = False,
    smallest: int = 1,
    cp: int = 1,
) -> Iterator[Config]:
    """Every configuration that the job's pins and batch and the model's items allow.

    Args:
        degrees: of ``tp``, ascending.
        is_block: of each item between which the model can be cut.
        mixes_batch: the batch can be cut neither over ranks nor into microbatches.
        one_microbatch: what a rank has of the batch cannot be cut into several.
        smallest: samples that a microbatch needs.
        interleaves: a rank may have several stages (the model has one kind of block).
        cp: ranks that split the tokens.
    """
    for tp in degrees:
        for pp in _pipelines(job, tp * cp, len(is_block), mixes_batch):
            dp = job.world_size // (tp * cp * pp)
            for microbatch in _microbatches(job, dp, mixes_batch or one_microbatch, smallest):
                count = job.global_batch // (dp * microbatch)
                for schedule, stages in _schedules(job, pp, count, is_block if interleaves else ()):
                    for zero, replicas, outermost in _states(job, tp, cp, pp, dp):
                        yield Config(
                            pp=pp,
                            dp=dp,
                            cp=cp,
                            tp=tp,
                            zero=zero,
                            replicas=replicas,
                            microbatch=microbatch,
                            num_microbatches=count,
                            schedule=schedule,
                            stages_per_rank=stages,
                            outermost=outermost,
                        )


def _pipelines(job: Job, inner: int, items: int, mixes_batch: bool) -> Iterator[int]:
    """Degrees of ``pp``, for so many ranks of ``tp`` and ``cp``."""
    pins = job.pins
    if job.world_size % inner:
        return
    for pp in divisors(job.world_size // inner):
        dp = job.world_size // (inner * pp)
        if pp > items or (mixes_batch and (dp > 1 or pp > 1)):
            continue
        if pins.pp in (None, pp) and pins.dp in (None, dp) and job.global_batch % dp == 0:
            yield pp


def _microbatches(job: Job, dp: int, one: bool, smallest: int) -> tuple[int, ...]:
    samples = job.global_batch // dp
    sizes = (samples,) if one else divisors(samples)
    pinned = job.pins.microbatch
    return tuple(size for size in sizes if size >= smallest and pinned in (None, size))


def _schedules(
    job: Job, pp: int, count: int, interleaved: tuple[bool, ...]
) -> Iterator[tuple[ScheduleName | None, int]]:
    """Schedules with their stages per rank; a pipeline has a microbatch for each rank at least.

    ``interleaved`` are the items if they may be, else none.
    """
    pins = job.pins
    if pp == 1:
        if pins.schedule in (None, "none") and pins.stages_per_rank in (None, 1):
            yield None, 1
        return
    if count < pp:
        return
    offered: list[tuple[ScheduleName, int]] = [("1f1b", 1), ("zero_bubble", 1)]
    if pins.schedule == "gpipe":
        offered.append(("gpipe", 1))
    if count % pp == 0:
        offered += _interleaved(pp, interleaved)
    for schedule, stages in offered:
        wanted = pins.schedule in (None, schedule) and pins.stages_per_rank in (None, stages)
        if wanted and _runs(schedule, pp, stages, count):
            yield schedule, stages


def _interleaved(pp: int, is_block: tuple[bool, ...]) -> Iterator[tuple[ScheduleName, int]]:
    """Numbers of stages a rank among which the items come out even."""
    for stages in range(2, min(MOST_STAGES_PER_RANK, len(is_block) // pp) + 1):
        if dealt(is_block, pp * stages):
            yield "interleaved_1f1b", stages


def _runs(schedule: ScheduleName, pp: int, stages: int, count: int) -> bool:
    try:
        PipelineShape(schedule=schedule, ranks=pp, stages=pp * stages, microbatches=count)
    except ScheduleError:
        return False
    return True


def _states(
    job: Job, tp: int, cp: int, pp: int, dp: int
) -> Iterator[tuple[int, int, Literal["pp", "dp"]]]:
    """ZeRO stages, replicas of sharded states, and which axis is outermost."""
    pins = job.pins
    orders: tuple[Literal["pp", "dp"], ...] = ("pp",)
    if pp > 1 and dp > 1 and job.gpus_per_node > tp * cp:
        orders = ("pp", "dp")
    for outermost in orders:
        if pins.outermost not in (None, outermost):
            continue
        within = _state_ranks_per_node(job.gpus_per_node, tp, cp, pp, dp, outermost)
        for zero in _zero_stages(job, pp, dp * cp):
            for replicas in _replicas(job, dp * cp, within, zero):
                yield zero, replicas, outermost


def _zero_stages(job: Job, pp: int, ranks: int) -> tuple[int, ...]:
    if job.pins.zero is not None:
        return (job.pins.zero,)
    if ranks == 1:
        return (0,)
    return (0, 1) if pp > 1 else (0, 1, 2, 3)


def _replicas(job: Job, ranks: int, within: int, zero: int) -> tuple[int, ...]:
    """One group of all ranks with the same weights, or one of those in each node."""
    found = [1]
    if zero and 1 < within < ranks and ranks % within == 0:
        found.append(ranks // within)
    pinned = job.pins.replicas
    if pinned is None:
        return tuple(found)
    allowed = zero > 0 and ranks % pinned == 0
    return (pinned,) if pinned == 1 or allowed else ()


def _state_ranks_per_node(
    gpus_per_node: int, tp: int, cp: int, pp: int, dp: int, outermost: Literal["pp", "dp"]
) -> int:
    """Ranks of ``dp`` and ``cp`` that share a node, in the worst placed group."""
    if gpus_per_node % tp:
        return 1
    if outermost == "pp":
        return min(dp * cp, gpus_per_node // tp)
    stride = tp * cp * pp
    near = min(dp, gpus_per_node // stride) if gpus_per_node % stride == 0 else 1
    return near * cp_ranks_per_node(cp, tp, gpus_per_node)
