"""A plan that was made before, in the terms of the search, so that it can be priced anew."""

from __future__ import annotations

from autoplan.errors import PlanError
from autoplan.plan import Plan, RegionPlan
from autoplan.search.candidates import Candidate
from autoplan.search.folded_graph import LOSS, ROOT
from autoplan.search.found import Found
from autoplan.search.pricing import Pricing
from autoplan.search.problem import memory_of, time_of
from autoplan.search.space import Space
from autoplan.sharding.assignment import assign, relative_name


def found_of(pricing: Pricing, plan: Plan) -> Found:
    """The candidate and the choices of a plan.

    Raises:
        PlanError: the plan is not one of the model, or nothing that a search could have found.
    """
    tp = plan.mesh.tp
    assign(pricing.graph, plan.regions, tp)
    candidate = Candidate(
        dp=plan.mesh.dp,
        tp=tp,
        zero=plan.zero,
        microbatch=plan.microbatch,
        num_microbatches=plan.num_microbatches,
    )
    recomputed = {region.kind: len(region.recomputed) for region in plan.regions if region.kind}
    choices = _choices(pricing.space(tp), plan.regions)
    problem = pricing.problem(candidate, recomputed)
    return Found(
        candidate=candidate,
        count=sum(recomputed.values()),
        recomputed=recomputed,
        choices=choices,
        time_s=time_of(problem, choices),
        memory_pages=memory_of(problem, choices),
    )


def _choices(space: Space, regions: tuple[RegionPlan, ...]) -> tuple[int, ...]:
    by_kind = {region.kind: region for region in regions}
    doors = {
        door.name: by_kind[kind].inputs[number]
        for kind, entries in space.folded.doors.items()
        for number, door in enumerate(entries)
    }
    chosen = []
    for name, strategies in zip(space.names, space.strategies, strict=True):
        label = doors[name] if name in doors else _label(space, by_kind, name)
        labels = [strategy.label for strategy in strategies]
        if label is not None and label not in labels:
            raise PlanError(f"the plan has {name} as {label}, which is no choice now; plan again")
        chosen.append(0 if label is None else labels.index(label))
    return tuple(chosen)


def _label(space: Space, by_kind: dict[str, RegionPlan], name: str) -> str | None:
    """What the plan says of a folded node; None where there is nothing to choose."""
    if name == LOSS:
        return None
    kind = space.folded.region.get(name, ROOT)
    region, short = by_kind[kind], relative_name(kind, name)
    return region.operators.get(short) or region.parameters.get(short)
