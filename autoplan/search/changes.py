"""Changes to a job after which it may fit, from the nearest to the farthest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from autoplan.job import Job
from autoplan.search.pricing import Pricing

_FREED = (
    "recompute", "zero", "replicas", "microbatch", "schedule", "stages_per_rank", "outermost",
    "tp", "cp", "pp", "dp",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Another job that may fit, and how to say so."""

    job: Job
    words: str


def changes(pricing: Pricing, mixing: tuple[str, ...]) -> Iterator[Change]:
    """Changes from the nearest to the farthest: pins first, then more nodes, then less work."""
    job = pricing.job
    if job.memory_limit_bytes is not None:
        whole = replace(job, memory_limit_bytes=None)
        yield Change(job=whole, words="without the memory limit it fits")
    if job.placements:
        yield Change(job=replace(job, placements=()), words="without the placements it fits")
    for name in _FREED:
        value = getattr(job.pins, name)
        if value is not None:
            freed = replace(job, pins=replace(job.pins, **{name: None}))
            yield Change(job=freed, words=f"without the pin {name}={value} it fits")
    nodes = 2 * job.nodes
    while nodes <= pricing.cluster.max_nodes and job.pins.tp is None and job.pins.dp is None:
        more = replace(job, nodes=nodes)
        yield Change(job=more, words=f"it fits on {nodes} nodes ({more.world_size} GPUs)")
        nodes *= 2
    batch = job.global_batch // 2 if mixing else 0
    while batch:
        yield Change(
            job=replace(job, global_batch=batch), words=f"it fits with a global batch of {batch}"
        )
        batch //= 2
