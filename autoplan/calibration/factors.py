"""How many times as long as predicted each kind of work took, from measured steps.

Of every rank, compute and the optimizer's step are compared with its estimate; the median over the
ranks counts, so that one that was held up does not decide. Waits for messages tell of the links
only without a pipeline, whose ranks also wait for each other.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from autoplan.measurement import RankMeasurement, StepMeasurement
from autoplan.plan import Estimate, Plan

Kind = Literal["compute", "optimizer", "messages"]
KINDS: tuple[Kind, ...] = ("compute", "optimizer", "messages")
LARGEST = 20.0
"""A factor beyond this, or below its inverse, is no correction."""
_LEAST_SHARE = 0.02
"""Of the step: what takes less is not told from what else there is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Factors:
    """Measured over predicted seconds, and why a kind of work has none."""

    factors: Mapping[Kind, float]
    refused: Mapping[Kind, str]

    def of(self, kind: Kind) -> float:
        """1 where nothing is known."""
        return self.factors.get(kind, 1.0)


def factors_of(plan: Plan, found: StepMeasurement) -> Factors:
    """The factors that a measurement of a plan tells."""
    factors: dict[Kind, float] = {}
    refused: dict[Kind, str] = {}
    for kind in KINDS:
        pairs = list(_pairs(kind, plan, found))
        if reason := _unknown(kind, plan, pairs):
            refused[kind] = reason
            continue
        factor = statistics.median(measured / predicted for predicted, measured in pairs)
        if 1 / LARGEST <= factor <= LARGEST:
            factors[kind] = factor
        else:
            refused[kind] = f"{factor:.3g} times the prediction: profile the machine first"
    return Factors(factors=factors, refused=refused)


def predicted_optimizer_s(plan: Plan, pp_rank: int) -> float:
    """Of a rank of the pipeline."""
    if not plan.stages:
        return plan.estimate.optimizer_s
    timings = zip(plan.stages, plan.estimate.timings, strict=True)
    return sum(timing.optimizer_s for stage, timing in timings if stage.rank == pp_rank)


def _pairs(kind: Kind, plan: Plan, found: StepMeasurement) -> Iterator[tuple[float, float]]:
    """Predicted and measured seconds of each rank."""
    for rank in found.ranks:
        predicted = _predicted_s(kind, plan, rank)
        measured = {
            "compute": _compute_s(plan.estimate, rank),
            "optimizer": rank.optimizer_s,
            "messages": rank.waiting_s,
        }[kind]
        if predicted > _LEAST_SHARE * plan.estimate.step_s and measured:
            yield predicted, measured


def _predicted_s(kind: Kind, plan: Plan, rank: RankMeasurement) -> float:
    if kind == "compute":
        return plan.estimate.stages[rank.pp_rank].compute_s
    if kind == "optimizer":
        return predicted_optimizer_s(plan, rank.pp_rank)
    return plan.estimate.exposed_comm_s


def _compute_s(estimate: Estimate, rank: RankMeasurement) -> float | None:
    """Where waits are not told, only what sends nothing tells compute."""
    if rank.compute_s is not None or estimate.comm_s:
        return rank.compute_s
    return rank.busy_s - rank.optimizer_s


def _unknown(kind: Kind, plan: Plan, pairs: list[tuple[float, float]]) -> str:
    if kind == "messages" and plan.mesh.pp > 1:
        return "ranks of a pipeline also wait for each other"
    if not pairs:
        return "not measured, or too little of the step"
    return ""
