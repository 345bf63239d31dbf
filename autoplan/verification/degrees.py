"""How many ranks, stages and microbatches a plan keeps on a few processes.

Axes along which the plan works stay axes: each keeps the smallest prime factor of its degree, and
hybrid sharding its replicas and the ranks in each. Where that is more ranks than asked for, axes
are given up, dp first and tp last; where it is fewer, they grow again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from autoplan.errors import PlanError
from autoplan.plan import Plan

LARGEST_WORLD = 64
"""Processes; more would only wait for each other."""

_ORDER: tuple[str, ...] = ("tp", "pp", "shards", "replicas")


@dataclass(frozen=True, kw_only=True, slots=True)
class Degrees:
    """Sizes of the program that is run.

    Attributes:
        shards: data-parallel ranks that share what ZeRO splits; ``dp = shards x replicas``.
        stages: of the pipeline, all ranks together; 0 without one.
        microbatch: samples of one data-parallel rank.
    """

    pp: int
    shards: int
    replicas: int
    tp: int
    stages: int
    num_microbatches: int
    microbatch: int

    @property
    def dp(self) -> int:
        return self.shards * self.replicas

    @property
    def world_size(self) -> int:
        return self.pp * self.dp * self.tp

    @property
    def global_batch(self) -> int:
        return self.dp * self.num_microbatches * self.microbatch


def small_degrees(plan: Plan, ranks: int | None = None) -> Degrees:
    """Degrees of the plan for ``ranks`` processes; by default for as many as keep every axis.

    Raises:
        PlanError: when there are no such ranks.
    """
    if ranks is not None and not 1 <= ranks <= LARGEST_WORLD:
        raise PlanError(f"--ranks {ranks}: give 1 to {LARGEST_WORLD}")
    whole = {
        "tp": plan.mesh.tp,
        "pp": plan.mesh.pp,
        "shards": plan.mesh.dp // plan.replicas,
        "replicas": plan.replicas,
    }
    axes: dict[str, int] = dict.fromkeys(_ORDER, 1)
    limit = math.inf if ranks is None else ranks
    for axis in _ORDER:
        factor = _smallest_factor(whole[axis])
        if math.prod(axes.values()) * factor <= limit:
            axes[axis] = factor
    if ranks is not None:
        while (grown := next(_grown(axes, whole, ranks), None)) is not None:
            axes = grown
    return _with_pipeline(plan, axes)


def words(plan: Plan, degrees: Degrees) -> Iterator[str]:
    """What became smaller: "dp 128 -> 2"."""
    pairs = {
        "pp": (plan.mesh.pp, degrees.pp),
        "dp": (plan.mesh.dp, degrees.dp),
        "tp": (plan.mesh.tp, degrees.tp),
        "replicas": (plan.replicas, degrees.replicas),
        "stages": (len(plan.stages), degrees.stages),
        "microbatches": (plan.num_microbatches, degrees.num_microbatches),
        "samples of a microbatch": (plan.microbatch, degrees.microbatch),
    }
    for name, (before, now) in pairs.items():
        if before != now:
            yield f"{name} {before} -> {now}"


def _with_pipeline(plan: Plan, axes: dict[str, int]) -> Degrees:
    """Two stages a rank where there were several, and microbatches for every rank to run two."""
    pp = axes["pp"]
    per_rank = min(2, len(plan.stages) // plan.mesh.pp)
    degrees = Degrees(
        **axes,
        stages=pp * per_rank if pp > 1 else 0,
        num_microbatches=min(plan.num_microbatches, 2 * pp),
        microbatch=min(plan.microbatch, max(2, axes["tp"])),
    )
    in_rounds = degrees.num_microbatches // pp * pp
    return replace(degrees, num_microbatches=in_rounds or degrees.num_microbatches)


def _grown(axes: dict[str, int], whole: dict[str, int], ranks: int) -> Iterator[dict[str, int]]:
    """The axes with one of them longer, as the plan and the ranks allow."""
    for axis in sorted(_ORDER, key=lambda name: axes[name]):
        factor = _smallest_factor(whole[axis] // axes[axis])
        if factor > 1 and math.prod(axes.values()) * factor <= ranks:
            yield axes | {axis: axes[axis] * factor}


def _smallest_factor(degree: int) -> int:
    return next((n for n in range(2, degree + 1) if degree % n == 0), 1)
