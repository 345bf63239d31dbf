"""Why no plan is possible or fits, and the nearest change that would, shown by a plan that fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autoplan.capabilities import runs
from autoplan.errors import InfeasibleError, PlanError
from autoplan.job import Job
from autoplan.search.changes import changes
from autoplan.search.deadline import Deadline
from autoplan.search.pins import divisors, listed
from autoplan.search.pipeline.contexts import contexts, offers_of
from autoplan.search.pipeline.costs import rank_memory
from autoplan.search.pipeline.families import Families, Offer
from autoplan.search.pipeline.joint import JointSearch
from autoplan.search.pipeline.reasons import largest_category
from autoplan.search.pricing import Pricing
from autoplan.sharding.batch import batch_layout
from autoplan.sharding.rules.batch_norm import needs_one_microbatch, smallest_microbatch
from autoplan.trace.stack import Stack
from cost_models.memory import MemoryBreakdown

_GIB = 2**30
_TRIED = 6


def no_configuration(pricing: Pricing, stack: Stack, degrees: tuple[int, ...]) -> PlanError:
    """The error for a job whose pins and batch allow no configuration."""
    job = pricing.job
    schedule, recomputes = job.pins.schedule or "none", job.pins.recompute == "full"
    reason = None if job.planned_only else runs(schedule, zero=0, recomputes=recomputes)
    if reason:
        return PlanError(reason)
    return PlanError(
        _of_mixing(pricing, degrees)
        or _of_one_microbatch(pricing)
        or _of_single_samples(pricing)
        or _of_batch(job, stack, degrees, job.world_size // pricing.cp)
        or _of_anything(job, stack, degrees)
    )


def _of_mixing(pricing: Pricing, degrees: tuple[int, ...]) -> str | None:
    """Why a batch that cannot be split leaves nothing."""
    job, mixing = pricing.job, batch_layout(pricing.whole_graph).mixing
    if not mixing:
        return None
    return (
        f"no mesh{_given(job)}: the batch cannot be split, because of {mixing[0]}, so that pp and "
        f"dp are 1, microbatch is {job.global_batch} and tp, which can be {listed(degrees)}, is "
        f"all GPUs; {_cure(job)} the GPUs"
    )


def _of_one_microbatch(pricing: Pricing) -> str | None:
    """Why a rank's samples that stay together leave nothing."""
    job, synced = pricing.job, needs_one_microbatch(pricing.whole_graph)
    if not synced or ((job.pins.pp or 1) == 1 and job.pins.microbatch is None):
        return None
    return (
        f"no mesh{_given(job)}: {synced} takes statistics of all samples of a rank, so that they "
        f"are one microbatch and pp is 1; {_cure(job)} the batch or the GPUs, or give "
        "batch_norm='local'"
    )


def _of_single_samples(pricing: Pricing) -> str | None:
    """Why microbatches of one sample leave nothing."""
    job = pricing.job
    if job.pins.microbatch != 1 or smallest_microbatch(pricing.whole_graph) == 1:
        return None
    return (
        f"no mesh{_given(job)}: a BatchNorm with statistics of one sample has a single value of "
        "each channel; leave out the pin on the microbatch"
    )


def _of_batch(job: Job, stack: Stack, degrees: tuple[int, ...], ranks: int) -> str | None:
    """Why no data-parallel degree divides the batch, or no rank's part of it as pinned.

    ``ranks`` are those of ``pp``, ``dp`` and ``tp``.
    """
    pins, batch = job.pins, job.global_batch
    possible = sorted(
        {
            ranks // (tp * pp)
            for tp in degrees
            if ranks % tp == 0
            for pp in divisors(ranks // tp)
            if pp <= len(stack.items) and pins.pp in (None, pp)
            if pins.dp in (None, ranks // (tp * pp))
        }
    )
    dividing = [dp for dp in possible if batch % dp == 0]
    if possible and not dividing:
        step = possible[0]
        below = batch // step * step
        near = f"{below} or {below + step}" if below else f"{step}"
        return (
            f"global batch {batch} is not divisible by dp={listed(possible)}; use a global batch "
            f"of {near}, or another number of GPUs"
        )
    size = pins.microbatch
    if size is None or not dividing or any(batch // dp % size == 0 for dp in dividing):
        return None
    samples = batch // dividing[0]
    return (
        f"microbatch={size} does not divide the {samples} samples of each of the dp={dividing[0]} "
        f"ranks; microbatch can be {listed(divisors(samples))}"
    )


def _of_anything(job: Job, stack: Stack, degrees: tuple[int, ...]) -> str:
    """All that a mesh has to hold to."""
    several = ""
    if job.pins.schedule == "interleaved_1f1b" or (job.pins.stages_per_rank or 1) > 1:
        several = (
            "; several stages on a rank are interleaved_1f1b, for microbatches in multiples of pp "
            "and models with one kind of block, whose parts fill all stages evenly"
        )
    return (
        f"no mesh{_given(job)} goes with a global batch of {job.global_batch} on "
        f"{job.world_size} GPUs: dp must divide the batch, tp can be {listed(degrees)}, pp at most "
        f"{len(stack.items)} with as many microbatches{several}; {_cure(job)} the batch or the GPUs"
    )


def _given(job: Job) -> str:
    pinned = [
        f"{name}={value}"
        for name in ("pp", "dp", "cp", "tp", "zero", "replicas", "microbatch", "schedule",
                     "stages_per_rank", "outermost")
        if (value := getattr(job.pins, name)) is not None
    ]  # fmt: skip
    return f" with {', '.join(pinned)}" if pinned else ""


def _cure(job: Job) -> str:
    return "leave out a pin or change" if _given(job) else "change"


def does_not_fit(
    pricing: Pricing, stack: Stack, offered: Sequence[Offer], deadline: Deadline | None
) -> InfeasibleError:
    """The error for a job of which no configuration fits, with the nearest change after which one
    does, as far as there is time to look for it."""
    deadline = deadline or Deadline()
    tried = _smallest(pricing, stack, offered, deadline)
    memory = min(tried, key=lambda found: found.total)
    over = memory.total - pricing.limit_bytes
    name, largest = largest_category(memory)
    mixing = batch_layout(pricing.whole_graph).mixing
    return InfeasibleError(
        f"no plan fits: the smallest tried needs {memory.total / _GIB:.1f} GiB on the fullest GPU, "
        f"{over / _GIB:.1f} GiB more than the {pricing.limit_bytes / _GIB:.1f} GiB there are "
        f"({name}: {largest / _GIB:.1f} GiB); {_change(pricing, mixing, deadline)}"
    )


def _change(pricing: Pricing, mixing: tuple[str, ...], deadline: Deadline) -> str:
    """The nearest change after which the job fits."""
    for change in changes(pricing, mixing):
        if deadline.is_over:
            return (
                f"no change that fits was found within the time limit of {deadline.limit_s:g} s; "
                "allow more time, or use more nodes"
            )
        if _fits(pricing.for_job(change.job), deadline):
            return change.words
    return "none of the usual changes helps: use devices with more memory"


def _smallest(
    pricing: Pricing, stack: Stack, offered: Sequence[Offer], deadline: Deadline
) -> Iterator[MemoryBreakdown]:
    """The fullest rank of the configurations whose states take least, with their leanest plan; of
    one at least, of the others while there is time."""

    def states(offer: Offer) -> tuple[float, int]:
        config = offer.config
        held = rank_memory(pricing, config).held_per_trained
        return held / (config.pp * config.tp), config.microbatch

    search = JointSearch(pricing, Families(pricing, stack))
    for number, offer in enumerate(sorted(offered, key=states)[:_TRIED]):
        if number and deadline.is_over:
            return
        yield max(search.search(offer).smallest().memory, key=lambda found: found.total)


def _fits(pricing: Pricing, deadline: Deadline) -> bool:
    """Whether a plan of another job fits, shown by one that does."""
    try:
        models = contexts(pricing)
    except PlanError:
        return False
    found = _smallest(pricing, models[0].stack, offers_of(models), deadline)
    return any(memory.total <= pricing.limit_bytes for memory in found)
