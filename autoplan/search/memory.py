"""Device memory of a plan by category, at the worse of the backward and the optimizer's step.

These are ``Problem``'s terms, told apart. With one pipeline stage the activations of one microbatch
are live at a time. What is not known is taken at its worst: the largest operator at work, or the
largest block being recomputed, meets everything that is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace

from autoplan.search.candidate_costs import CandidateCosts
from autoplan.search.found import Found
from autoplan.search.pricing import Pricing
from autoplan.search.problem import (
    PAGE_BYTES,
    copies_of,
    held_storages,
    peak_of,
    transient_of,
)
from cost_models.memory import MemoryBreakdown, WeightBytes


def memory_of_plan(pricing: Pricing, plan: Found) -> MemoryBreakdown:
    """Bytes on one device."""
    costs = pricing.costs(plan.candidate)
    problem, choices = pricing.problem(plan.candidate, plan.recomputed), plan.choices
    input_bytes = pricing.input_bytes(plan.candidate.dp)
    *gathered, reduced = (peak_of(peak, choices) for peak in problem.peaks)
    kept = sum(storage.kept_pages for storage in held_storages(problem, choices))
    kept += copies_of(problem, choices)
    weights = _Weights(costs, choices)
    copied = weights.sum(lambda each: each.gathered_parameters)
    backward = MemoryBreakdown(
        parameters=weights.sum(lambda each: each.parameters) + pricing.buffer_bytes,
        master_weights=0,
        gradients=weights.sum(lambda each: each.gradients),
        optimizer_state=weights.sum(lambda each: each.optimizer_state),
        gathered_parameters=copied + sum(gathered) * PAGE_BYTES,
        activations=kept * PAGE_BYTES + input_bytes,
        transient=transient_of(problem, choices) * PAGE_BYTES,
        communication_buffers=reduced * PAGE_BYTES,
        workspace=pricing.cluster.device.workspace_bytes,
    )
    step = replace(
        backward,
        gathered_parameters=copied,
        activations=input_bytes,
        transient=weights.sum(lambda each: each.optimizer_step),
        communication_buffers=0,
    )
    return max(backward, step, key=lambda breakdown: breakdown.total)


def largest_category(memory: MemoryBreakdown) -> tuple[str, int]:
    """The category that takes most, in words, and its bytes."""
    found = (
        (field.name.replace("_", " "), getattr(memory, field.name)) for field in fields(memory)
    )
    return max(found, key=lambda item: item[1])


class _Weights:
    """Sums over the parameters of a plan."""

    def __init__(self, costs: CandidateCosts, choices: Sequence[int]) -> None:
        self._terms = [
            (
                costs.folded.copies(costs.region(number)) * elements[choices[number]],
                costs.weights.per_element[costs.weights.trainable[number]],
            )
            for number, elements in costs.weights.elements.items()
        ]

    def sum(self, bytes_of: Callable[[WeightBytes], float]) -> int:
        return math.ceil(sum(elements * bytes_of(each) for elements, each in self._terms))
