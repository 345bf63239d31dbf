"""Why no plan is possible or fits, and the nearest change that would, shown by a plan that fits."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.capabilities import runs
from autoplan.errors import InfeasibleError, PlanError
from autoplan.search.candidates import admissible_tp
from autoplan.search.infeasible import changes
from autoplan.search.memory import largest_category
from autoplan.search.pins import listed
from autoplan.search.pipeline.costs import rank_memory
from autoplan.search.pipeline.families import Families, Offer
from autoplan.search.pipeline.joint import JointSearch
from autoplan.search.pipeline.offered import offers
from autoplan.search.pricing import Pricing
from autoplan.sharding.batch import batch_layout
from autoplan.sharding.rules.batch_norm import needs_one_microbatch
from autoplan.trace.stack import Stack
from cost_models.memory import MemoryBreakdown

_GIB = 2**30
_TRIED = 6


def no_configuration(pricing: Pricing, stack: Stack, degrees: tuple[int, ...]) -> PlanError:
    """The error for a job whose pins and batch allow no configuration."""
    job = pricing.job
    pinned = [
        f"{name}={value}"
        for name in ("pp", "dp", "tp", "zero", "replicas", "microbatch", "schedule",
                     "stages_per_rank", "outermost")
        if (value := getattr(job.pins, name)) is not None
    ]  # fmt: skip
    given = f" with {', '.join(pinned)}" if pinned else ""
    cure = "leave out a pin or change" if pinned else "change"
    schedule, recomputes = job.pins.schedule or "none", job.pins.recompute == "full"
    reason = None if job.planned_only else runs(schedule, zero=0, recomputes=recomputes)
    if reason:
        return PlanError(reason)
    mixing = batch_layout(pricing.graph).mixing
    if mixing:
        return PlanError(
            f"no mesh{given}: the batch cannot be split, because of {mixing[0]}, so that pp and dp "
            f"are 1, microbatch is {job.global_batch} and tp, which can be {listed(degrees)}, is "
            f"all GPUs; {cure} the GPUs"
        )
    synced = needs_one_microbatch(pricing.graph)
    if synced and ((job.pins.pp or 1) > 1 or job.pins.microbatch is not None):
        return PlanError(
            f"no mesh{given}: {synced} takes statistics of all samples of a rank, so that they are "
            f"one microbatch and pp is 1; {cure} the batch or the GPUs"
        )
    several = ""
    if job.pins.schedule == "interleaved_1f1b" or (job.pins.stages_per_rank or 1) > 1:
        several = (
            "; several stages on a rank are interleaved_1f1b, for microbatches in multiples of pp "
            "and models with one kind of block, whose parts fill all stages evenly"
        )
    return PlanError(
        f"no mesh{given} goes with a global batch of {job.global_batch} on {job.world_size} GPUs: "
        f"dp must divide the batch, tp can be {listed(degrees)}, pp at most {len(stack.items)} "
        f"with as many microbatches{several}; {cure} the batch or the GPUs"
    )


def does_not_fit(pricing: Pricing, stack: Stack, offered: Sequence[Offer]) -> InfeasibleError:
    """The error for a job of which no configuration fits."""
    memory = min(_smallest(pricing, stack, offered), key=lambda found: found.total)
    over = memory.total - pricing.limit_bytes
    name, largest = largest_category(memory)
    mixing = batch_layout(pricing.graph).mixing
    cure = next(
        (
            change.words
            for change in changes(pricing, mixing)
            if _fits(pricing.for_job(change.job), stack)
        ),
        "none of the usual changes helps: use devices with more memory",
    )
    return InfeasibleError(
        f"no plan fits: the smallest tried needs {memory.total / _GIB:.1f} GiB on the fullest GPU, "
        f"{over / _GIB:.1f} GiB more than the {pricing.limit_bytes / _GIB:.1f} GiB there are "
        f"({name}: {largest / _GIB:.1f} GiB); {cure}"
    )


def _smallest(pricing: Pricing, stack: Stack, offered: Sequence[Offer]) -> list[MemoryBreakdown]:
    """The fullest rank of the configurations whose states take least, with their leanest plan."""

    def states(offer: Offer) -> tuple[float, int]:
        config = offer.config
        held = rank_memory(pricing, config).held_per_trained
        return held / (config.pp * config.tp), config.microbatch

    search = JointSearch(pricing, Families(pricing, stack))
    return [
        max(search.search(offer).smallest().memory, key=lambda found: found.total)
        for offer in sorted(offered, key=states)[:_TRIED]
    ]


def _fits(pricing: Pricing, stack: Stack) -> bool:
    """Whether a plan of another job fits, shown by one that does."""
    try:
        degrees = admissible_tp(
            pricing.graph, pricing.job, pricing.strategies_of, pricing.overrides
        )
    except PlanError:
        return False
    found = _smallest(pricing, stack, offers(pricing, stack, degrees))
    return any(memory.total <= pricing.limit_bytes for memory in found)
