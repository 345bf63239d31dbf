"""Pins that hold for no model: degrees and devices, and what a schedule can be."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import get_args

from autoplan.capabilities import ZERO_STAGES
from autoplan.errors import PlanError
from autoplan.job import Job, Pins
from cost_models.schedules import PipelineShape, ScheduleError, ScheduleName

NO_PIPELINE = "none"
SCHEDULES = (NO_PIPELINE, *get_args(ScheduleName))
_AXES = ("pp", "dp", "cp", "tp")
_STAGES_TOLD = 8


def check_pins(job: Job) -> None:
    """Refuses pins that hold for no model.

    Raises:
        PlanError: saying which values would hold.
    """
    _check_offered(job)
    _check_values(job)
    _check_degrees(job)
    _check_schedule(job.pins)
    _check_replicas(job)


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    return tuple(d for d in range(1, number + 1) if number % d == 0)


def listed(values: Iterable[object]) -> str:
    """``1, 2, 4``."""
    return ", ".join(str(value) for value in values)


def _check_offered(job: Job) -> None:
    pins = job.pins
    if (pins.ep or 1) > 1:
        raise PlanError(
            f"ep={pins.ep}: expert parallelism is not available yet; use ep=1 or leave it out"
        )
    if (pins.cp or 1) > 1 and not job.planned_only:
        raise PlanError(
            f"cp={pins.cp}: context parallelism is planned only, no run splits tokens on its own "
            "axis yet; add --allow-planned-only (planned_only=True in Python), or leave cp out"
        )
    if pins.schedule == "zbv":
        raise PlanError(
            "schedule=zbv is not searched; use schedule=zero_bubble, which also splits the backward"
        )


def _check_values(job: Job) -> None:
    pins, world = job.pins, job.world_size
    for name in (*_AXES, "ep", "microbatch", "stages_per_rank", "replicas"):
        value = getattr(pins, name)
        if value is not None and value < 1:
            raise PlanError(
                f"{name}={value} is not a positive number; leave it out or use 1 or more"
            )
    for axis in _AXES:
        value = getattr(pins, axis)
        if value is not None and world % value:
            raise PlanError(
                f"{axis}={value} does not divide the {world} GPUs; "
                f"{axis} can be {listed(divisors(world))}"
            )
    stages = tuple(stage.stage for stage in ZERO_STAGES)
    if pins.zero is not None and pins.zero not in stages:
        raise PlanError(f"zero={pins.zero} is not a ZeRO stage; zero can be {listed(stages)}")
    if pins.schedule is not None and pins.schedule not in SCHEDULES:
        raise PlanError(f"schedule={pins.schedule} is none; schedule can be {listed(SCHEDULES)}")


def _of_a_pipeline(pins: Pins) -> tuple[str, ...]:
    """The pins that hold with a pipeline only."""
    needs = {
        "pp": (pins.pp or 1) > 1,
        "schedule": pins.schedule not in (None, NO_PIPELINE),
        "stages_per_rank": (pins.stages_per_rank or 1) > 1,
        "outermost": pins.outermost == "dp",
    }
    return tuple(name for name, is_needed in needs.items() if is_needed)


def _check_degrees(job: Job) -> None:
    """The product of the degrees is the world size, and divides it where one is left open.

    ``cp`` is open only where it may be planned.
    """
    pins, world = job.pins, job.world_size
    pinned = {axis: getattr(pins, axis) for axis in _AXES if getattr(pins, axis) is not None}
    are_all = {*pinned, "cp"} == {*_AXES}
    is_open = not are_all or (job.planned_only and pins.cp is None)
    product = math.prod(pinned.values())
    if product == world or (is_open and world % product == 0):
        return
    cures = [
        f"{axis}={world * value // product}"
        for axis, value in pinned.items()
        if world * value % product == 0
    ]
    factors = " times ".join(f"{axis}={value}" for axis, value in pinned.items())
    raise PlanError(
        f"{factors} is {product}, {'not' if are_all else 'no divisor of'} the {world} GPUs; "
        f"{'use ' + ' or '.join(cures) if cures else 'leave one of them out'}"
    )


def _check_schedule(pins: Pins) -> None:
    schedule, per_rank = pins.schedule, pins.stages_per_rank
    without = "pp=1" if pins.pp == 1 else f"schedule={schedule}"
    if pins.pp == 1 or schedule == NO_PIPELINE:
        for name in _of_a_pipeline(pins):
            raise PlanError(
                f"{name}={getattr(pins, name)} needs a pipeline and {without} has none; "
                "leave one of the two pins out"
            )
        return
    if schedule is None or per_rank is None or _runs(schedule, per_rank):
        return
    possible = [count for count in range(1, _STAGES_TOLD + 1) if _runs(schedule, count)]
    raise PlanError(
        f"schedule={schedule} does not run {per_rank} stages on a rank; stages_per_rank can be "
        f"{listed(possible)}"
    )


def _runs(schedule: str, per_rank: int) -> bool:
    """Whether there are numbers of ranks and microbatches for which the schedule exists."""
    try:
        PipelineShape(
            schedule=schedule,  # pyright: ignore[reportArgumentType]
            ranks=2,
            stages=2 * per_rank,
            microbatches=2,
        )
    except ScheduleError:
        return False
    return True


def _check_replicas(job: Job) -> None:
    pins = job.pins
    if pins.replicas is None or pins.replicas == 1:
        return
    if pins.zero == 0:
        raise PlanError(
            f"replicas={pins.replicas} are copies of what ZeRO splits, and zero=0 splits nothing; "
            "leave one of the two pins out"
        )
    rest = math.prod(getattr(pins, axis) or 1 for axis in ("pp", "tp"))
    ranks = pins.dp * (pins.cp or 1) if pins.dp else job.world_size // rest
    if ranks % pins.replicas:
        raise PlanError(
            f"replicas={pins.replicas} does not divide the {ranks} data-parallel ranks; "
            f"replicas can be {listed(divisors(ranks))}"
        )
