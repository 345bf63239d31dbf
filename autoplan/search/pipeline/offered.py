"""What is offered for a job on a model: configurations, and what their blocks may recompute.

What the runtime cannot run is left out unless the job asks for what can be planned only: what
``autoplan.capabilities`` refuses, and schedules that split the backward where a cut of the model
could keep it from being split (``sharding.split_backward``).
"""

from __future__ import annotations

from collections.abc import Iterator

from autoplan.capabilities import RUNNABLE_SCHEDULES, runs
from autoplan.errors import PlanError
from autoplan.job import Job
from autoplan.search.pipeline.configs import Config, configs
from autoplan.search.pipeline.families import Offer
from autoplan.search.pricing import Pricing
from autoplan.search.regions.menus import Recompute
from autoplan.sharding.batch import batch_layout
from autoplan.sharding.rules.batch_norm import needs_one_microbatch, smallest_microbatch
from autoplan.sharding.split_backward import split_obstacle_of_any
from autoplan.trace.stack import Stack


def offers(pricing: Pricing, stack: Stack, degrees: tuple[int, ...]) -> tuple[Offer, ...]:
    """All that the job allows at the pricing's ``cp``; ``degrees`` are the admissible ones of
    ``tp``.

    Raises:
        PlanError: a pin on recomputing or on the schedule that cannot be.
    """
    job = pricing.job
    splits = _may_split(pricing)
    found = configs(
        job,
        degrees,
        tuple(bool(item.kind) for item in stack.items),
        mixes_batch=bool(batch_layout(pricing.whole_graph).mixing),
        one_microbatch=needs_one_microbatch(pricing.whole_graph) is not None,
        smallest=smallest_microbatch(pricing.whole_graph),
        cp=pricing.cp,
        interleaves=_is_uniform(stack),
    )
    return tuple(
        Offer(config=config, recompute=recompute)
        for config in found
        if splits or not config.shape.splits_backward
        for recompute in ways(job, config)
    )


def ways(job: Job, config: Config) -> Iterator[Recompute]:
    """How the blocks of a configuration may recompute: any of their operators, and, where bounds
    and plans are better found apart, none."""
    pinned = job.pins.recompute
    if job.planned_only:
        yield pinned or "free"
        return
    schedule = config.schedule or "none"
    wanted: Recompute = pinned or "free"
    for way in (wanted, "none") if wanted == "free" else (wanted,):
        recomputes = way != "none"
        if not runs(schedule, zero=config.zero, recomputes=recomputes):
            yield way


def all_ways(job: Job, config: Config) -> tuple[Recompute, ...]:
    """As ``ways``, with those that others have in them too: all blocks, and none."""
    found = tuple(ways(job, config))
    more: tuple[Recompute, ...] = ("none", "full") if "free" in found else ()
    return tuple(dict.fromkeys((*found, *more)))


def _may_split(pricing: Pricing) -> bool:
    """Whether schedules that split the backward are offered.

    Raises:
        PlanError: one is pinned, and they are not.
    """
    job = pricing.job
    found = None if job.planned_only else split_obstacle_of_any(pricing.graph)
    support = RUNNABLE_SCHEDULES.get(job.pins.schedule or "none")
    if found is not None and support is not None and support.splits_backward:
        raise PlanError(
            f"schedule={job.pins.schedule} splits the backward, which would lose gradients here "
            f"({found}): use 1f1b or interleaved_1f1b"
        )
    return found is None


def _is_uniform(stack: Stack) -> bool:
    """Whether blocks of one kind follow each other, parts of the root before and behind alone."""
    kinds = [item.kind for item in stack.items]
    blocks = [number for number, kind in enumerate(kinds) if kind]
    return len(set(kinds) - {""}) == 1 and blocks[-1] - blocks[0] == len(blocks) - 1
