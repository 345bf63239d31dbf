"""Plans along one size of a job: its nodes, its batch, or the length of its samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from autoplan.errors import InfeasibleError, PlanError
from autoplan.job import Job, Pins
from autoplan.plan import Plan
from autoplan.plan_details import SizeLimit, scaling_among
from autoplan.search.deadline import Deadline
from autoplan.sizing.series import Series

_MOST_SAMPLES = 2**14

Axis = Literal["nodes", "global_batch", "seq_len"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One job and its plan; ``reason`` says why there is none."""

    job: Job
    plan: Plan | None
    reason: str = ""

    @property
    def devices(self) -> int:
        return self.job.world_size

    @property
    def samples_per_s(self) -> float | None:
        return self.plan and self.plan.estimate.samples_per_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """The largest size that fits, with a plan that shows it.

    Attributes:
        bound: the smallest that was seen not to; None where none was tried that could be planned.
    """

    value: int
    bound: int | None
    plan: Plan

    @property
    def short(self) -> SizeLimit:
        """As plan files hold it."""
        return SizeLimit(
            value=self.value,
            does_not_fit=self.bound,
            peak_memory_bytes=self.plan.estimate.peak_memory_bytes,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """Plans by one size; the limits are None where they were not asked for, or nothing fits."""

    over: Axis
    points: tuple[Point, ...]
    largest_microbatch: Limit | None = None
    longest_sequence: Limit | None = None

    @property
    def batches(self) -> tuple[int, ...]:
        """The distinct batches, in the order of the points."""
        return tuple(dict.fromkeys(point.job.global_batch for point in self.points))

    def scaling(self, point: Point) -> float | None:
        """As ``scaling_among`` the points; None where they are not of several nodes."""
        return scaling_among(self.points, point) if self.over == "nodes" else None


def point_of(series: Series, job: Job, time_limit_s: float | None) -> Point:
    """The plan of a job, or why there is none."""
    try:
        plan = series.whole(job, Deadline(time_limit_s))
    except (PlanError, InfeasibleError) as error:
        return Point(job=job, plan=None, reason=str(error))
    return Point(job=job, plan=plan)


def largest(
    fits: Callable[[int], Plan | None], start: int, most: int, *, share: float = 0.0
) -> Limit | None:
    """The largest size that fits, by doubling and halving; None if none does.

    Args:
        fits: a plan for a size, or None; where one fits, smaller ones do.
        start: is tried first.
        most: where to end.
        share: sizes closer than this share of them are not told apart.
    """
    low, plan, high = 0, None, None
    size = min(start, most)
    while size >= 1 and (plan is None or high is None):
        found = fits(size)
        if found is None:
            high = size
            size //= 2
        else:
            low, plan = size, found
            if size == most:
                break
            size = min(2 * size, most)
    if plan is None:
        return None
    while high is not None and high - low > max(1, share * low):
        middle = (low + high) // 2
        found = fits(middle)
        low, high, plan = (low, middle, plan) if found is None else (middle, high, found)
    return Limit(value=low, bound=high, plan=plan)


def fitting(series: Series, job: Job) -> Plan | None:
    """A plan with the pinned microbatch, if any fits; the batch is as large as that needs."""
    size = (job.pins.microbatch or 1) * job.world_size
    try:
        return series.quick(replace(job, global_batch=size))
    except PlanError:
        return None


def largest_microbatch(series: Series, plan: Plan) -> Limit | None:
    """The most samples at once on a plan's mesh, whatever ZeRO stage and recomputing it takes."""
    mesh = plan.mesh
    pins = Pins(pp=mesh.pp, dp=mesh.dp, tp=mesh.tp)

    def fits(size: int) -> Plan | None:
        return fitting(series, replace(plan.job, pins=replace(pins, microbatch=size)))

    return largest(fits, 1, _MOST_SAMPLES)


def values_of(option: str, text: str) -> tuple[int, ...]:
    """``1,2,8`` as numbers; ``1..64`` as 1, 2, 4 and so on, doubled up to 64.

    Raises:
        PlanError: no such list of positive numbers.
    """
    try:
        found = tuple(dict.fromkeys(each for part in text.split(",") for each in _part(part)))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise PlanError(
            f"{option} {text}: give numbers as 1,2,8, or 1..64 for 1, 2, 4 and so on up to 64"
        )
    return tuple(sorted(found))


def _part(text: str) -> Iterator[int]:
    first, dots, last = text.partition("..")
    value, most = int(first), int(last if dots else first)
    if most < value:
        raise ValueError(f"{text} descends")
    while value <= most:
        yield value
        if value < 1:
            break
        value *= 2
