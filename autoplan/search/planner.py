"""The plan of a job over pipelines, data and tensor parallelism together, with its proof."""

from __future__ import annotations

from dataclasses import replace

from autoplan.job import Job
from autoplan.plan import Plan
from autoplan.progress import Progress
from autoplan.search.deadline import Deadline
from autoplan.search.pins import check_pins
from autoplan.search.pipeline.configs import MOST_STAGES_PER_RANK
from autoplan.search.pipeline.contexts import Context, contexts, offers_of
from autoplan.search.pipeline.families import Families, Offer
from autoplan.search.pipeline.joint import JointSearch
from autoplan.search.pipeline.plans import plan_of
from autoplan.search.pipeline.refusal import does_not_fit, no_configuration
from autoplan.search.pipeline.rivals import Rivals
from autoplan.search.pricing import Pricing
from autoplan.search.proof import counted, record_of, tell_comparing
from autoplan.trace.graph import OpGraph
from hardware_profiles.spec import ClusterSpec

BUBBLE = " without recomputing where the backward of any stage can be split"

SPACE = (
    "all pp x dp x tp meshes whose tp splits every heavy operator, pp or dp outermost, ZeRO 0-3 "
    "over all data-parallel ranks or those of a node, all microbatches that divide the batch; with "
    "a pipeline at least as many microbatches as ranks, 1F1B, zero bubble{bubble}, and for models "
    "with one kind of block "
    f"interleaved 1F1B with up to {MOST_STAGES_PER_RANK} stages a rank, filled evenly; cuts "
    "between any two blocks or parts of the rest; for each block which operators are recomputed "
    "and for each of its operators one placement on tp, placed alike where a block ends as where "
    "it begins"
)


def plan_job(
    graph: OpGraph,
    job: Job,
    cluster: ClusterSpec,
    progress: Progress | None = None,
    deadline: Deadline | None = None,
) -> Plan:
    """The fastest plan that fits.

    Args:
        graph: the model, at any batch.
        job: what to train, on how many devices; its pins are honoured.
        cluster: the profile that ``job.cluster`` names.
        progress: called with the fraction done and what is known so far.
        deadline: when to end with the fastest plan found so far and its gap; the plan says so.

    Raises:
        PlanError: pins, batch and devices do not go together; no plan until the deadline.
        InfeasibleError: nothing fits the memory.
    """
    return plan_priced(Pricing(graph, job, cluster), progress, deadline=deadline)


def plan_priced(
    pricing: Pricing,
    progress: Progress | None = None,
    *,
    with_alternatives: bool = True,
    deadline: Deadline | None = None,
    families: Families | None = None,
) -> Plan:
    """``plan_job`` with a cost model that may be shared with other jobs.

    Without alternatives, the plan is the same and is found sooner; so it is with the ``families``
    of another job on the same model and as many devices of a node of the same cluster.
    """
    job = pricing.job
    first, offered = _offered(pricing)
    families = families or Families(pricing, first.stack)
    search = JointSearch(pricing, families, deadline)
    outcome = search.best_of(offered, progress=counted(progress, "configurations solved"))
    if outcome.best is None and outcome.is_cut and deadline:
        raise deadline.no_plan()
    if outcome.best is None:
        raise does_not_fit(pricing, first.stack, offered, deadline)
    tell_comparing(progress)
    rivals = Rivals(pricing, families, search, offered, first.degrees, deadline)
    best, standard = rivals.best_with_recipes(outcome.best)
    record = record_of(
        job,
        step_s=best.step_s,
        bound_s=outcome.bound_s,
        candidates=len(offered),
        space=_space(pricing, families),
        cut_by=deadline if outcome.is_cut else None,
    )
    plan = plan_of(pricing, best, record)
    if not with_alternatives:
        return plan
    return replace(plan, alternatives=tuple(rivals.alternatives(best, standard)))


def plan_quickly(
    pricing: Pricing, families: Families, deadline: Deadline | None = None
) -> Plan | None:
    """A good plan for the price of one configuration's search, or None where none fits.

    The configuration is the one that is sketched to be the fastest; the gap is to what no plan of
    all configurations is faster than.

    Args:
        pricing: of the job.
        families: as for ``plan_priced``.

    Raises:
        PlanError: as ``plan_job``.
    """
    _, offered = _offered(pricing)
    search = JointSearch(pricing, families, deadline)
    found = search.good_of(offered)
    if found is None and deadline and deadline.is_over:
        raise deadline.no_plan()
    if found is None:
        return None
    record = record_of(
        pricing.job,
        step_s=found.step_s,
        bound_s=min(search.bounds.of(offer) for offer in offered),
        candidates=len(offered),
        space=f"{_space(pricing, families)}; of these, one configuration was searched",
    )
    return plan_of(pricing, found, record)


def _offered(pricing: Pricing) -> tuple[Context, tuple[Offer, ...]]:
    """The model at the smallest degree of cp, and all configurations that there are at any.

    Raises:
        PlanError: there is none.
    """
    check_pins(pricing.job)
    found = contexts(pricing)
    offered = offers_of(found)
    if not offered:
        raise no_configuration(found[0].pricing, found[0].stack, found[0].degrees)
    return found[0], offered


def _space(pricing: Pricing, families: Families) -> str:
    """The space that the bound holds for."""
    space = SPACE.format(bubble="" if pricing.job.planned_only else BUBBLE)
    if pricing.job.planned_only:
        space += "; tokens of samples split over cp ranks next to those of tp"
    if pricing.shares_samples:
        space += "; samples shared over tp where it divides a microbatch"
    if families.without_calls:
        space += f"; blocks like {', '.join(families.without_calls)} run again as a whole"
    return space
