"""What differs between two plans: the questions, the decisions, and what they should cost.

Names that differ in the indices of repeated layers alone are folded where both plans place them
alike. Operators are compared where both plans are for the same graph and both have a tp axis:
without one, every operator is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from autoplan.explanation import TIME_PARTS, memory_parts, variant_of
from autoplan.plan import Plan, RegionPlan
from autoplan.report import schedules, units, words
from autoplan.report.assumptions import assumption_rows, installed_profile
from autoplan.report.fold import block_pattern
from autoplan.report.recompute import recompute, recompute_share

_NONE = "-"


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What two plans have under one name; ``-`` where a plan has nothing."""

    name: str
    first: str
    second: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Amount:
    """Seconds or bytes of two plans; None where a plan has no such rank."""

    name: str
    first: float | None
    second: float | None

    @property
    def difference(self) -> float | None:
        """The second plan's less the first one's."""
        if self.first is None or self.second is None:
            return None
        return self.second - self.first


@dataclass(frozen=True, kw_only=True, slots=True)
class RankAmounts:
    """One rank of the pipelines: seconds of a step, and bytes of each of its devices."""

    rank: int
    compute_s: Amount
    bubble_s: Amount
    memory_bytes: Amount


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two plans side by side.

    Attributes:
        same_model: both are for one model, by name, sizes of inputs and graph.
        same_step: both train the same model on the same batch, so that steps can be compared.
        questions: what was asked otherwise, or taken as given otherwise.
        decisions: of the whole step.
        placements: of parameters on tp, by folded names.
        operators: how many run in other placements on tp, by module.
        time_s, memory_bytes: by category, of a step and of the fullest device.
        ranks: of the pipelines, where there is one.
    """

    same_model: bool
    same_step: bool
    questions: tuple[Choice, ...]
    decisions: tuple[Choice, ...]
    placements: tuple[Choice, ...]
    operators: tuple[Choice, ...]
    time_s: tuple[Amount, ...]
    memory_bytes: tuple[Amount, ...]
    ranks: tuple[RankAmounts, ...]


def compare(first: Plan, second: Plan) -> Comparison:
    """Two plans, of whatever models and clusters."""
    same_graph = first.fingerprint == second.fingerprint
    same_model = same_graph and first.job.model == second.job.model
    same_batch = first.job.global_batch == second.job.global_batch
    has_tp = min(first.mesh.tp, second.mesh.tp) > 1
    return Comparison(
        same_model=same_model,
        same_step=same_model and same_batch,
        questions=tuple(_differing(_questions, first, second)),
        decisions=tuple(_differing(_decisions, first, second)),
        placements=tuple(_placements(first, second)) if same_graph else (),
        operators=tuple(_operators(first, second)) if same_graph and has_tp else (),
        time_s=tuple(_times(first, second)),
        memory_bytes=tuple(_memory(first, second)),
        ranks=tuple(_ranks(first, second)) if first.stages or second.stages else (),
    )


def _differing(
    rows_of: Callable[[Plan], Mapping[str, str]], first: Plan, second: Plan
) -> Iterator[Choice]:
    ours, theirs = rows_of(first), rows_of(second)
    for name in dict.fromkeys((*ours, *theirs)):
        one, other = ours.get(name, _NONE), theirs.get(name, _NONE)
        if one != other:
            yield Choice(name=name, first=one, second=other)


def _questions(plan: Plan) -> dict[str, str]:
    rows = dict(assumption_rows(plan, installed_profile(plan)))
    limit_bytes = plan.job.memory_limit_bytes
    rows["memory limit"] = "the device" if limit_bytes is None else units.nbytes(limit_bytes)
    rows["graph"] = plan.fingerprint[:12]
    if rows.pop("profile").startswith("CHANGED"):
        rows["profile"] = f"changed since, was {plan.profile_digest[:12]}"
    return rows


def _decisions(plan: Plan) -> dict[str, str]:
    rows = {
        "mesh": words.mesh(plan.mesh),
        "schedule": _NONE,
        "stages": _NONE,
        "ZeRO": f"stage {plan.zero}",
        "replicas": str(plan.replicas),
        "microbatches": f"{plan.num_microbatches} of {plan.microbatch}",
        "recompute": recompute_share(plan),
    }
    if plan.stages:
        rows["schedule"] = schedules.name(plan.schedule)
        rows["stages"] = _stages(plan)
    if rows["recompute"] == "by operator":
        rows["recompute"] = recompute(plan).removeprefix("run again in the backward:\n")
    return rows


def _stages(plan: Plan) -> str:
    """``8 of 4 blocks``, or ``3 of 10, 12, 10 blocks``."""
    sizes = [len(stage.blocks) for stage in plan.stages]
    told = sizes[:1] if len(set(sizes)) == 1 else sizes
    return f"{len(sizes)} of {', '.join(map(str, told))} block{'s' if told != [1] else ''}"


def _expanded(
    plan: Plan, of_region: Callable[[RegionPlan], Mapping[str, str]]
) -> Iterator[tuple[str, str, str]]:
    """Block (empty outside blocks), name in it, and value, of every block of the model."""
    for region in plan.regions:
        for block in region.blocks or ("",):
            for name, value in of_region(region).items():
                yield block, name, value


def _changes(
    first: Plan, second: Plan, of_region: Callable[[RegionPlan], Mapping[str, str]]
) -> dict[tuple[str, str], tuple[str, str]]:
    """Values in both plans of all (block, name) that either has."""
    ours = {(block, name): value for block, name, value in _expanded(first, of_region)}
    theirs = {(block, name): value for block, name, value in _expanded(second, of_region)}
    every = dict.fromkeys((*ours, *theirs))
    return {key: (ours.get(key, _NONE), theirs.get(key, _NONE)) for key in every}


def _placements(first: Plan, second: Plan) -> Iterator[Choice]:
    """Parameters that are placed otherwise, those of repeated layers as one where they agree."""
    changes = _changes(first, second, lambda region: region.parameters)
    groups: dict[str, dict[tuple[str, str], list[str]]] = {}
    for (block, name), values in changes.items():
        path = f"{block}.{name}" if block else name
        groups.setdefault(_shape(path), {}).setdefault(values, []).append(path)
    for by_value in groups.values():
        for (one, other), paths in by_value.items():
            if one != other:
                pattern = block_pattern(paths, explicit=len(by_value) > 1)
                yield Choice(name=pattern, first=one, second=other)


def _operators(first: Plan, second: Plan) -> Iterator[Choice]:
    """How many operators of each module run in other placements."""
    changed: dict[str, set[str]] = {}
    every: dict[str, set[str]] = {}
    for (block, name), (one, other) in _changes(
        first, second, lambda region: region.operators
    ).items():
        module = name.rpartition("/")[0].split(".")[0]
        where = _shape(".".join(filter(None, (block, module)))) or "outside modules"
        every.setdefault(where, set()).add(name)
        if one != other:
            changed.setdefault(where, set()).add(name)
    for where, names in changed.items():
        yield Choice(name=where, first=str(len(names)), second=str(len(every[where])))


def _shape(path: str) -> str:
    """A name with every index as ``*``."""
    return ".".join("*" if part.isdecimal() else part for part in path.split("."))


def _times(first: Plan, second: Plan) -> Iterator[Amount]:
    for field in (*TIME_PARTS, "step_s"):
        ours, theirs = (getattr(plan.estimate, field) for plan in (first, second))
        yield Amount(name=field, first=ours, second=theirs)


def _memory(first: Plan, second: Plan) -> Iterator[Amount]:
    ours, theirs = (memory_parts(variant_of(plan).memory) for plan in (first, second))
    for field in ours:
        yield Amount(name=field, first=ours[field], second=theirs[field])
    yield Amount(name="total", first=sum(ours.values()), second=sum(theirs.values()))


def _ranks(first: Plan, second: Plan) -> Iterator[RankAmounts]:
    ours, theirs = first.estimate.stages, second.estimate.stages
    for rank in range(max(len(ours), len(theirs))):
        pair = [stages[rank] if rank < len(stages) else None for stages in (ours, theirs)]
        compute, bubble, memory = (
            [None if each is None else value(each) for each in pair]
            for value in (
                lambda each: each.compute_s,
                lambda each: each.bubble_s,
                lambda each: each.memory.total,
            )
        )
        yield RankAmounts(
            rank=rank,
            compute_s=Amount(name="compute", first=compute[0], second=compute[1]),
            bubble_s=Amount(name="bubble", first=bubble[0], second=bubble[1]),
            memory_bytes=Amount(name="memory", first=memory[0], second=memory[1]),
        )
