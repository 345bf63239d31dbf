"""From a graph, a job and a cluster to a plan with its estimate, its proof and its rivals."""

from __future__ import annotations

from autoplan.job import Job
from autoplan.plan import Alternative, MeshPlan, Plan
from autoplan.search.best_first import BestFirst, Outcome
from autoplan.search.candidates import admissible_tp, enumerate_candidates
from autoplan.search.deadline import Deadline
from autoplan.search.estimate import estimate_of
from autoplan.search.found import Found
from autoplan.search.infeasible import explain
from autoplan.search.pipeline.planner import plan_jointly
from autoplan.search.pricing import Pricing
from autoplan.search.proof import Progress, counted, record_of, tell_comparing
from autoplan.search.recipes import best_of, standard_recipes
from autoplan.search.rivals import alternative
from autoplan.sharding.assignment import regions_of
from autoplan.sharding.batch import batch_layout
from autoplan.trace.graph import OpGraph
from hardware_profiles.spec import ClusterSpec

SPACE = (
    "all dp x tp meshes whose tp splits every heavy operator, ZeRO 0-3, all microbatches that "
    "divide the batch, the first n blocks of each kind recomputed (kinds in turn), and for each "
    "operator, parameter and block input one placement on tp, equal in all blocks of a kind"
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
) -> Plan:
    """``plan_job`` with a cost model that may be shared with other jobs.

    Without alternatives, the plan is the same and is found sooner.
    """
    graph, job = pricing.graph, pricing.job
    if job.searches_pipelines:
        return plan_jointly(
            pricing, progress, with_alternatives=with_alternatives, deadline=deadline
        )
    mixing = batch_layout(graph).mixing
    candidates = enumerate_candidates(
        graph,
        job,
        mixing=mixing,
        strategies_of=pricing.strategies_of,
        overrides=pricing.overrides,
    )
    told = counted(progress, "candidates")
    deadline = deadline or Deadline()
    search = BestFirst(pricing, candidates, job.pins.recompute, told, deadline)
    degrees = admissible_tp(graph, job, pricing.strategies_of, pricing.overrides)
    recipes = []
    for recipe in standard_recipes(degrees, job):
        found = None if deadline.is_over else best_of(recipe, search, candidates)
        if found is not None:
            recipes.append((recipe, found))
            search.offer(found)
    outcome = search.run()
    if outcome.best is None and outcome.is_cut:
        raise deadline.no_plan()
    if outcome.best is None:
        raise explain(pricing, mixing)
    tell_comparing(progress)
    rivals = [(recipe.name, found) for recipe, found in recipes] if with_alternatives else []
    if with_alternatives and not outcome.is_cut:
        others = (search.settle(tp) for tp in degrees if tp != outcome.best.candidate.tp)
        rivals += [(f"best found, tp={found.candidate.tp}", found) for found in others if found]
    return _plan(
        pricing,
        outcome,
        outcome.best,
        tuple(alternative(pricing, name, found, outcome.best) for name, found in rivals),
        len(candidates),
        deadline,
    )


def _plan(
    pricing: Pricing,
    outcome: Outcome,
    best: Found,
    alternatives: tuple[Alternative, ...],
    candidates: int,
    deadline: Deadline,
) -> Plan:
    graph, candidate = pricing.graph, best.candidate
    estimate = estimate_of(pricing, best)
    space = pricing.space(candidate.tp)
    taken = {
        name: strategies[choice]
        for name, strategies, choice in zip(
            space.names, space.strategies, best.choices, strict=True
        )
    }
    kinds = {node.name: node.kind for node in pricing.folded.nodes}
    return Plan(
        job=pricing.job,
        fingerprint=graph.fingerprint,
        mesh=MeshPlan(dp=candidate.dp, tp=candidate.tp),
        zero=candidate.zero,
        microbatch=candidate.microbatch,
        num_microbatches=candidate.num_microbatches,
        schedule="none",
        regions=regions_of(
            graph,
            {name: s.label for name, s in taken.items() if kinds.get(name) == "call"},
            {name: s.outputs[0] for name, s in taken.items() if kinds.get(name) == "parameter"},
            {
                kind: tuple(taken[door.name].outputs[0] for door in doors)
                for kind, doors in pricing.folded.doors.items()
            },
            frozenset(
                block.path
                for kind, blocks in graph.kinds.items()
                for block in blocks[: best.recomputed.get(kind, 0)]
            ),
        ),
        estimate=estimate,
        search=record_of(
            pricing.job,
            step_s=estimate.step_s,
            bound_s=outcome.bound_s,
            candidates=candidates,
            space=SPACE,
            cut_by=deadline if outcome.is_cut else None,
        ),
        alternatives=alternatives,
        profile_digest=pricing.cluster.digest,
    )
