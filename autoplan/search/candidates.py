"""Which degrees, ZeRO stages and microbatches are worth planning for a job.

A tensor-parallel degree is *admissible* when every operator with a real share of the model's work
has a strategy that splits this work: otherwise each rank would repeat it. Nothing here knows an
operator by name. What the user has pinned is honoured or refused with the values that would hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autoplan.capabilities import ZERO_STAGES
from autoplan.errors import PlanError
from autoplan.job import Job
from autoplan.search.overrides import NONE_GIVEN, Overrides, splitting_all
from autoplan.search.pins import check_pins, divisors, listed
from autoplan.search.space import StrategiesOf
from autoplan.sharding.rules.batch_norm import needs_one_microbatch
from autoplan.trace.graph import OpGraph, OpNode

HEAVY_SHARE = 0.001


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One mesh with its ZeRO stage and microbatch (samples per data-parallel rank)."""

    dp: int
    tp: int
    zero: int
    microbatch: int
    num_microbatches: int


def enumerate_candidates(
    graph: OpGraph,
    job: Job,
    *,
    mixing: tuple[str, ...],
    strategies_of: StrategiesOf,
    overrides: Overrides = NONE_GIVEN,
) -> tuple[Candidate, ...]:
    """Every candidate that the job's pins, its batch and the model's sizes allow.

    Args:
        graph: the model; any batch.
        job: a job without pipelines; its pins narrow the list.
        mixing: operators that need the whole batch at once, and why (``BatchLayout.mixing``): they
            allow neither data parallelism nor microbatches.
        strategies_of: the strategies of a node on a ``tp`` axis of a given size.
        overrides: placements that the user has chosen; they narrow the degrees of ``tp``.

    Raises:
        PlanError: when a pin cannot hold or no candidate is left.
    """
    check_pins(job)
    _check_recompute(graph, job)
    found = []
    synced = needs_one_microbatch(graph)
    degrees = admissible_tp(graph, job, strategies_of, overrides)
    for tp in degrees:
        dp = job.world_size // tp
        if job.global_batch % dp or (mixing and dp > 1):
            continue
        for microbatch in _microbatches(job, dp, mixing or synced):
            for zero in _zero_stages(job, dp):
                found.append(
                    Candidate(
                        dp=dp,
                        tp=tp,
                        zero=zero,
                        microbatch=microbatch,
                        num_microbatches=job.global_batch // (dp * microbatch),
                    )
                )
    if not found:
        divided = any(job.global_batch * tp % job.world_size == 0 for tp in degrees)
        if synced and divided and job.pins.microbatch is not None:
            raise PlanError(
                f"microbatch={job.pins.microbatch} is not all samples of a rank, of which {synced} "
                "takes statistics; leave out the pin"
            )
        raise PlanError(_why_none(job, mixing, degrees))
    return tuple(found)


def admissible_tp(
    graph: OpGraph, job: Job, strategies_of: StrategiesOf, overrides: Overrides = NONE_GIVEN
) -> tuple[int, ...]:
    """Tensor-parallel degrees, ascending, that agree with what is given and split all heavy work.

    Raises:
        PlanError: when the pins or the overrides leave none.
    """
    pins, wanted = job.pins, _wanted_tp(job)
    heavy = _heavy_nodes(graph)
    good = tuple(
        tp for tp in divisors(job.world_size) if _obstacle(heavy, tp, strategies_of) is None
    )
    if wanted is None:
        return splitting_all(overrides, good)
    if wanted in good:
        return splitting_all(overrides, (wanted,))
    node = _obstacle(heavy, wanted, strategies_of)
    pipeline = f" with pp={pins.pp}" if (pins.pp or 1) > 1 else ""
    needs = f"dp={pins.dp}{pipeline} needs tp={wanted}, which"
    pin = f"tp={wanted}" if pins.tp is not None else needs
    raise PlanError(
        f"{pin} cannot split {node.name if node else 'the model'}: its sizes do not divide into "
        f"{wanted} equal parts; tp can be {listed(good)}"
    )


def _wanted_tp(job: Job) -> int | None:
    """The degree that the pins leave; None where they leave several."""
    pins = job.pins
    pp = pins.pp if job.searches_pipelines else 1
    if pins.tp is not None or pins.dp is None or pp is None:
        return pins.tp
    return job.world_size // (pins.dp * pp)


def _check_recompute(graph: OpGraph, job: Job) -> None:
    count, blocks = job.pins.recompute, len(graph.blocks)
    if isinstance(count, int) and not 0 <= count <= blocks:
        raise PlanError(
            f"recompute={count}: the model has {blocks} repeated blocks; "
            f"use none, full or a number up to {blocks}"
        )


def _heavy_nodes(graph: OpGraph) -> tuple[OpNode, ...]:
    """Nodes with more than ``HEAVY_SHARE`` of the work, corresponding ones of blocks as one."""
    total = sum(node.flops for node in graph.nodes)
    copies = {
        name for blocks in graph.kinds.values() for block in blocks[1:] for name in block.nodes
    }
    weight = {name: len(graph.kinds[block.kind]) for name, block in graph.block_of.items()}
    return tuple(
        node
        for node in graph.nodes
        if node.name not in copies and node.flops * weight.get(node.name, 1) > HEAVY_SHARE * total
    )


def _obstacle(heavy: Iterable[OpNode], tp: int, strategies_of: StrategiesOf) -> OpNode | None:
    """The first heavy node that no strategy splits over ``tp`` ranks."""
    if tp == 1:
        return None
    for node in heavy:
        if not any(strategy.splits_work for strategy in strategies_of(node, tp)):
            return node
    return None


def _microbatches(job: Job, dp: int, whole: object) -> tuple[int, ...]:
    """Samples per rank and microbatch that the pins allow, ascending.

    Args:
        whole: what keeps a rank's samples in one microbatch, if anything does.
    """
    samples = job.global_batch // dp
    sizes = (samples,) if whole else divisors(samples)
    pinned = job.pins.microbatch
    return sizes if pinned is None else tuple(size for size in sizes if size == pinned)


def _zero_stages(job: Job, dp: int) -> tuple[int, ...]:
    """Stages to try; with one data-parallel rank all stages are the same."""
    if job.pins.zero is not None:
        return (job.pins.zero,)
    return tuple(stage.stage for stage in ZERO_STAGES) if dp > 1 else (0,)


def _why_none(job: Job, mixing: tuple[str, ...], tp_degrees: tuple[int, ...]) -> str:
    """One line on why no candidate is left, after the pins alone were found possible."""
    degrees = tuple(job.world_size // tp for tp in tp_degrees)
    if mixing and 1 not in degrees:
        return (
            f"the batch cannot be split, because of {mixing[0]}; dp={listed(degrees)} would "
            "split it: use 1 GPU"
        )
    if mixing:
        return (
            f"microbatch={job.pins.microbatch} splits the batch, which cannot be because of "
            f"{mixing[0]}; use microbatch={job.global_batch}"
        )
    fitting = tuple(dp for dp in degrees if job.global_batch % dp == 0)
    if not fitting:
        step = min(degrees)
        below = job.global_batch // step * step
        near = f"{below} or {below + step}" if below else f"{step}"
        return (
            f"global batch {job.global_batch} is not divisible by dp={listed(degrees)}; "
            f"use a global batch of {near}, or another number of GPUs"
        )
    dp = fitting[0]
    samples = job.global_batch // dp
    return (
        f"microbatch={job.pins.microbatch} does not divide the {samples} samples of each of the "
        f"dp={dp} ranks; microbatch can be {listed(divisors(samples))}"
    )
