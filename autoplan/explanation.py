"""Why a plan is what it is: what binds, what memory is worth, and what else was possible.

Every figure is computed by the cost model that plans; times are seconds of one step, memory is
bytes of the fullest device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from autoplan.job import Job, Pins
from autoplan.plan import Alternative, Estimate, MeshPlan, Plan
from cost_models.memory import MemoryBreakdown

Verdict = Literal["slower", "as fast", "faster", "does not fit", "cannot be"]

PLACE = "place:"
TIME_PARTS = ("compute_s", "exposed_comm_s", "bubble_s", "optimizer_s")


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """Why not another plan: one with these pins, and ``placements`` as of a job."""

    pins: Pins
    placements: tuple[tuple[str, str], ...] = ()

    @property
    def given_pins(self) -> dict[str, int | str]:
        """The pins that are asked for, by name."""
        values = ((field.name, getattr(self.pins, field.name)) for field in fields(Pins))
        return {name: value for name, value in values if value is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A plan in figures.

    Attributes:
        recomputed_blocks: of ``blocks``; they run their whole forward again.
        recomputes_operators: whether single operators of others do.
    """

    mesh: MeshPlan
    zero: int
    microbatch: int
    num_microbatches: int
    recomputed_blocks: int
    blocks: int
    estimate: Estimate
    schedule: str = "none"
    stages_per_rank: int = 1
    replicas: int = 1
    recomputes_operators: bool = False

    @property
    def memory(self) -> MemoryBreakdown:
        return max((stage.memory for stage in self.estimate.stages), key=lambda m: m.total)


@dataclass(frozen=True, kw_only=True, slots=True)
class MoreMemory:
    """The best plan when each device has ``added_bytes`` more."""

    added_bytes: int
    plan: Variant
    difference_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Whether the memory limit costs time, and how much.

    Attributes:
        binds: the best plan without a limit is faster by more than the search resolves.
        unlimited: that plan.
        needed_bytes: what it needs beyond the limit; not above zero where it fits.
        more: plans with more memory, until more is worth nothing.
    """

    binds: bool
    unlimited: Variant
    needed_bytes: int
    more: tuple[MoreMemory, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rival:
    """A plan that was not chosen, and the pins under which it is the answer."""

    alternative: Alternative
    pins: Mapping[str, int | str]


@dataclass(frozen=True, kw_only=True, slots=True)
class WhyNot:
    """The best plan under other pins beside the plan that is explained.

    Attributes:
        pins: those asked for; ``place:GLOB`` stands for the placement of parameters.
        verdict: how it compares; ``reason`` says why it does not fit or cannot be.
        plan: the best with the pins; where none fits, the fastest if memory were unlimited; None
            where the pins cannot hold.
        step_difference_s, time_difference_s, memory_difference_bytes: ``plan`` less the plan that
            is explained, in all and by category.
    """

    pins: Mapping[str, int | str]
    verdict: Verdict
    reason: str
    plan: Variant | None = None
    step_difference_s: float = 0.0
    time_difference_s: Mapping[str, float]
    memory_difference_bytes: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """A plan explained.

    Attributes:
        plan: its decisions, priced anew.
        is_best: whether the same search, done now, finds nothing faster.
        lower_bound_s: no plan in the space takes less.
        memory, rivals: answers to the general question; None and empty where pins were asked for.
        why_not: the answer about pins; None without.
    """

    model: str
    cluster: str
    plan: Variant
    is_best: bool
    lower_bound_s: float
    memory: Memory | None
    rivals: tuple[Rival, ...]
    why_not: WhyNot | None


def memory_parts(memory: MemoryBreakdown) -> dict[str, int]:
    """Bytes by category."""
    return {field.name: getattr(memory, field.name) for field in fields(memory)}


def variant_of(plan: Plan) -> Variant:
    """A plan in figures."""
    return Variant(
        mesh=plan.mesh,
        zero=plan.zero,
        microbatch=plan.microbatch,
        num_microbatches=plan.num_microbatches,
        recomputed_blocks=sum(len(region.recomputed) for region in plan.regions),
        blocks=sum(len(region.blocks) for region in plan.regions),
        estimate=plan.estimate,
        schedule=plan.schedule,
        stages_per_rank=len(plan.stages) // plan.mesh.pp or 1,
        replicas=plan.replicas,
        recomputes_operators=any(region.recomputed_operators for region in plan.regions),
    )


def pins_of(other: Alternative, job: Job) -> dict[str, int | str]:
    """The pins under which an alternative to the job's plan is the answer, if it fits.

    What is recomputed is pinned where pins can say it: no block, or each.
    """
    found: dict[str, int | str] = {
        "dp": other.mesh.dp,
        "tp": other.mesh.tp,
        "zero": other.zero,
        "microbatch": job.global_batch // (other.mesh.dp * other.num_microbatches),
        "pp": other.mesh.pp,
        "schedule": other.schedule,
        "stages_per_rank": other.stages_per_rank,
        "replicas": other.replicas,
        "outermost": other.mesh.outermost,
    }
    if other.recompute in ("none", "full"):
        found["recompute"] = other.recompute
    return found
