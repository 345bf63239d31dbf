"""A plan: every decision about how to train one model on one cluster, and its predicted cost.

Decisions are keyed by the model's own names (parameters, modules), with repeated blocks folded, so
that a plan can be read, compared and partly overridden by hand. A plan holds no wall time and no
date: planning the same job twice gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from autoplan.job import Job
from autoplan.plan_details import BlockFlow, ModuleMemory, Outlook
from cost_models.memory import MemoryBreakdown
from cost_models.schedule_times import StageTimes

PLAN_VERSION = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class MeshPlan:
    """Degrees of parallelism; their product is the world size. ``tp`` ranks are neighbours.

    ``outermost`` is the axis whose ranks are farthest apart; the other one comes next to ``tp``.
    """

    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    tp: int = 1
    outermost: Literal["pp", "dp"] = "pp"

    @property
    def world_size(self) -> int:
        return self.pp * self.dp * self.cp * self.ep * self.tp


@dataclass(frozen=True, kw_only=True, slots=True)
class RegionPlan:
    """Decisions for some or all blocks of one kind, or for what is outside blocks.

    Every block is in one region; placements are on the ``tp`` axis.

    Attributes:
        kind: the block kind (``OpGraph.kinds``); empty for the rest of the model, the root.
        blocks: paths of the blocks; empty for the root.
        recomputed: the paths among ``blocks`` that run their whole forward again in the backward.
        recomputed_operators: calls, by node name relative to the kind, that run again in the
            backward of the blocks that are not in ``recomputed``. Views among them follow what they
            are views of.
        reconverted_inputs: numbers among ``inputs`` of what these blocks keep as it entered alone;
            what it is in other placements is made again in the backward, where that needs it.
        parameters: placement of each parameter's storage, by name relative to the kind.
        operators: label of the chosen ``Strategy`` of each call, by node name relative to the kind.
        inputs: placement in which each activation enters the block (``Block.inputs`` order).
    """

    kind: str
    blocks: tuple[str, ...]
    recomputed: tuple[str, ...]
    parameters: Mapping[str, str]
    operators: Mapping[str, str]
    inputs: tuple[str, ...]
    recomputed_operators: tuple[str, ...] = ()
    reconverted_inputs: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class StagePlan:
    """One pipeline stage: a range of the model in its order of execution.

    Attributes:
        rank: the rank of the ``pp`` axis that runs it.
        first: where it begins: the path of a block, or the first call outside blocks.
        blocks: paths of its blocks, in order.
    """

    rank: int
    first: str
    blocks: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageEstimate:
    """Predictions for one rank of the ``pp`` axis: seconds and bytes of each of its devices.

    Attributes:
        devices: that have these figures.
        compute_s: compute of one step.
        forward_s, backward_s: of one microbatch through all stages of the rank, with the messages
            that no compute hides; the backward has what is recomputed.
        bubble_s: what the rank waits for others in one step.
        held_microbatches: the most whose activations it holds at once.
    """

    devices: int
    compute_s: float
    memory: MemoryBreakdown
    forward_s: float = 0.0
    backward_s: float = 0.0
    bubble_s: float = 0.0
    held_microbatches: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTiming:
    """What was simulated of one pipeline stage, on each of its devices.

    Attributes:
        times: seconds of one microbatch.
        forward_messages_s, backward_messages_s: what messages over ``tp`` and ``dp`` add to the
            forward and to the whole backward in ``times``.
        tail_s: messages over ``dp`` that show behind the stage's last backward of a step.
        optimizer_s: the optimizer's update of its weights.
        kept_bytes: activations of one microbatch, from its forward to its backward; rounded down.
    """

    times: StageTimes
    forward_messages_s: float
    backward_messages_s: float
    tail_s: float
    optimizer_s: float
    kept_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Predictions for one training step.

    ``step_s = compute_s + exposed_comm_s + bubble_s + optimizer_s``. By collective and axis, on the
    rank that is busy for longest: ``comm_s``, time, hidden or not ("all_reduce tp": 0.012), and
    ``comm_bytes`` and ``comm_counts``, of the whole tensors that its messages are about.

    Attributes:
        exposed_by_axis_s: what ``exposed_comm_s`` is made of.
        head_s: messages over ``dp`` that show before the first forward of all stages.
        timings: of each stage in the model's order; one without a pipeline.
        modules: what fills a device of the fullest rank, the largest first.
    """

    step_s: float
    compute_s: float
    exposed_comm_s: float
    bubble_s: float
    optimizer_s: float
    comm_s: Mapping[str, float]
    tokens_per_s: float | None
    samples_per_s: float
    mfu: float
    peak_memory_bytes: int
    memory_limit_bytes: int
    stages: tuple[StageEstimate, ...]
    comm_bytes: Mapping[str, int] = field(default_factory=dict)
    comm_counts: Mapping[str, int] = field(default_factory=dict)
    exposed_by_axis_s: Mapping[str, float] = field(default_factory=dict)
    head_s: float = 0.0
    timings: tuple[StageTiming, ...] = ()
    modules: tuple[ModuleMemory, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Alternative:
    """A plan that was not chosen: a standard recipe or a runner-up, costed by the same model."""

    name: str
    mesh: MeshPlan
    zero: int
    num_microbatches: int
    recompute: str
    step_s: float | None
    peak_memory_bytes: int
    fits: bool
    reason: str
    schedule: str = "none"
    stages_per_rank: int = 1
    replicas: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchRecord:
    """What the search proved: ``gap`` is ``1 - lower_bound_s / step_s`` over ``space``."""

    gap: float
    lower_bound_s: float
    candidates: int
    space: str


@dataclass(frozen=True, kw_only=True, slots=True)
class OpaquePlan:
    """An operator without a rule: on ``tp`` every rank computes the whole of it.

    Attributes:
        operator: its name, ``mylib::op``.
        calls: how many the model has.
        first: name of the first of them.
        splits_batch: whether samples were seen to stay apart, so that ranks of ``dp`` and
            microbatches share the batch; else the whole model has the batch in one piece.
        microbatch_s: seconds of all calls for one microbatch, forward and backward, run once.
    """

    operator: str
    calls: int
    first: str
    splits_batch: bool
    microbatch_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The decisions and their estimate.

    Attributes:
        microbatch: samples per data-parallel rank.
        schedule: the pipeline's (``cost_models.schedules``); ``none`` without a pipeline.
        stages: of the pipeline, in the model's order; empty without one.
        replicas: how many groups of data-parallel ranks each hold a whole copy of what ZeRO splits
            (hybrid sharding); it divides ``dp``.
        warnings: what keeps the plan from running as it stands.
        opaque: the operators of the model that have no rule.
        flows: how blocks run, by region, but for blocks of too many operators to be drawn.
        outlook: other sizes of the same training, where they were asked for.
    """

    job: Job
    fingerprint: str
    mesh: MeshPlan
    zero: int
    microbatch: int
    num_microbatches: int
    schedule: str
    regions: tuple[RegionPlan, ...]
    estimate: Estimate
    search: SearchRecord
    alternatives: tuple[Alternative, ...]
    profile_digest: str
    stages: tuple[StagePlan, ...] = ()
    replicas: int = 1
    warnings: tuple[str, ...] = ()
    opaque: tuple[OpaquePlan, ...] = ()
    flows: tuple[BlockFlow, ...] = ()
    outlook: Outlook | None = None
    version: int = PLAN_VERSION
