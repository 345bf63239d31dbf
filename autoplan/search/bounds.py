"""Lower bounds of a candidate's time and memory that need no solver.

Every decision takes what is cheapest for itself alone, as if conversions were free: no assignment
can do better.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.search.candidate_costs import CandidateCosts, Recomputed
from autoplan.search.candidates import Candidate
from autoplan.search.folded_graph import ROOT
from autoplan.search.operator_costs import MicrobatchCosts
from autoplan.search.problem import PAGE_BYTES, Problem
from autoplan.search.recompute import RecomputeOrder
from autoplan.search.storages import KeptStorage
from autoplan.search.weight_terms import WeightTerms, held_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class ActivationFloor:
    """Fewest bytes and seconds of one microbatch, whatever is chosen.

    Attributes:
        kept_bytes: by region, what one block (or the root) keeps when it is not recomputed; without
            what enters it.
        entering_bytes: by block kind, what one recomputed block keeps.
        transient_bytes: of the largest operator at work.
        forward_s: by region, the forward of one block.
    """

    kept_bytes: dict[str, float]
    entering_bytes: dict[str, float]
    transient_bytes: float
    forward_s: dict[str, float]


def activation_floor(costs: MicrobatchCosts, storages: tuple[KeptStorage, ...]) -> ActivationFloor:
    """The floor of a space at one microbatch."""
    space, folded = costs.space, costs.space.folded
    kept = dict.fromkeys((ROOT, *folded.kinds), 0.0)
    forward = dict.fromkeys((ROOT, *folded.kinds), 0.0)
    shares: dict[int, list[float]] = {}
    for storage in storages:
        if storage.source.node in costs.sizes.doors:
            continue
        holders = [(node, keep) for node, keep in storage.holders.items() if keep]
        for node, keep in holders:
            row = shares.setdefault(node, [0.0] * len(space.strategies[node]))
            for choice in keep:
                row[choice] += storage.nbytes / len(holders)
    for node, row in shares.items():
        kept[folded.region[space.names[node]]] += min(row)
    transient = 0.0
    for number, options in enumerate(costs.operators):
        region = folded.region.get(space.names[number], ROOT)
        forward[region] += min(cost.forward_s for cost in options)
        transient = max(transient, min(cost.transient_bytes for cost in options))
    entering = {
        kind: sum(
            costs.sizes.doors[door.name].nbytes / (space.tp if len(space.of(door.name)) > 1 else 1)
            for door in doors
            if door.distinct == folded.copies(kind)
        )
        for kind, doors in folded.doors.items()
    }
    return ActivationFloor(
        kept_bytes=kept,
        entering_bytes=entering,
        transient_bytes=transient,
        forward_s=forward,
    )


def fewest_bytes(
    costs: CandidateCosts, floor: ActivationFloor, order: RecomputeOrder, count: int
) -> float:
    """Fewest bytes of a candidate that recomputes ``count`` blocks."""
    always, step = _weight_bytes(costs)
    backward = _backward_bytes(costs, floor, order, count)
    return (costs.fixed_pages - 1) * PAGE_BYTES + always + max(step, backward)


def fewest_recomputed(
    costs: CandidateCosts, floor: ActivationFloor, order: RecomputeOrder, fewest: int, most: int
) -> int | None:
    """The smallest count of recomputed blocks that could fit; None when none can."""
    always, step = _weight_bytes(costs)
    room = (costs.limit_pages - costs.fixed_pages + 1) * PAGE_BYTES - always
    if step > room:
        return None
    for count in range(fewest, most + 1):
        if _backward_bytes(costs, floor, order, count) <= room:
            return count
    return None


def _weight_bytes(costs: CandidateCosts) -> tuple[float, float]:
    """Fewest bytes of the parameters, always and at the optimizer's step."""
    always = step = 0.0
    for number, elements in costs.weights.elements.items():
        each = costs.weights.per_element[costs.weights.trainable[number]]
        stored = costs.folded.copies(costs.region(number)) * min(elements)
        always += stored * held_bytes(each)
        step += stored * each.optimizer_step
    return always, step


def _backward_bytes(
    costs: CandidateCosts, floor: ActivationFloor, order: RecomputeOrder, count: int
) -> float:
    total = floor.kept_bytes[ROOT] + floor.transient_bytes
    for kind, recomputed in order.of(count).items():
        total += (costs.folded.copies(kind) - recomputed) * floor.kept_bytes[kind]
        total += max(0, recomputed - 1) * floor.entering_bytes[kind]
    return total


def recompute_s(
    candidate: Candidate, floor: ActivationFloor, order: RecomputeOrder, count: int
) -> float:
    """Seconds that the forwards of ``count`` recomputed blocks take at least."""
    once = sum(blocks * floor.forward_s[kind] for kind, blocks in order.of(count).items())
    return candidate.num_microbatches * once


def fewest_seconds(problem: Problem) -> float:
    """Least time of a problem's nodes when conversions are free and each decision is alone."""
    return sum(min(choice.time_s for choice in node.choices) for node in problem.nodes)


def fewest_weight_seconds(costs: CandidateCosts, recomputed: Recomputed) -> float:
    """Least exposed time of parameters: the optimizer and the messages over ``dp``.

    ``recomputed`` are the most blocks that may be: recomputing gives messages a wider window.
    """
    terms = WeightTerms(costs, recomputed)
    total = terms.root_latency_s()
    for number, elements in costs.weights.elements.items():
        choices = terms.choices(number, [""] * len(elements))
        total += min(choice.time_s for choice in choices)
    for overlap in terms.overlaps():
        sent = overlap.fixed_messages_s + sum(min(row) for _, row in overlap.messages_s)
        window = overlap.fixed_window_s + sum(max(row) for _, row in overlap.window_s)
        total += max(overlap.floor * sent, sent - window)
    return total
