"""Bytes of one pipeline rank by category, at the worse of its last moments of the step.

With I microbatches held at once, the backward holds I times what a stage keeps of one, and what
passes beside it: the region that makes or moves most at once. The optimizer's step holds no
activations but its own passing memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.search.pipeline.loads import Load, Unit
from cost_models.memory import (
    STORED_BYTES,
    MemoryBreakdown,
    ModelStates,
    Moment,
    WeightBytes,
    worst_moment,
)

IN_FLIGHT_UNITS = 2
"""Units (blocks, or the root) whose gathered weights are whole at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankMemory:
    """Memory of the ranks of one configuration.

    Attributes:
        trained, frozen: bytes of one element, before any split over data-parallel ranks.
        is_alone: one data-parallel rank: nothing is gathered or reduced.
        buffer_bytes, input_bytes, workspace_bytes: what every rank holds beside its stages.
        limit_bytes: what there is.
    """

    trained: WeightBytes
    frozen: WeightBytes
    is_alone: bool
    buffer_bytes: float
    input_bytes: float
    workspace_bytes: float
    limit_bytes: float

    @property
    def fixed_bytes(self) -> float:
        return self.buffer_bytes + self.input_bytes + self.workspace_bytes

    @property
    def held_per_trained(self) -> float:
        """Bytes that a trained element takes during the whole step."""
        return _held_bytes(self.trained)

    @property
    def held_per_frozen(self) -> float:
        return _held_bytes(self.frozen)

    def breakdown(self, loads: Sequence[Load], held_activation_bytes: float) -> MemoryBreakdown:
        """Bytes of a rank with some stages, which hold so much of all microbatches at most."""
        trained = sum(unit.count * unit.trained_elements for load in loads for unit in load.units)
        frozen = sum(unit.count * unit.frozen_elements for load in loads for unit in load.units)

        def total(name: str) -> float:
            return trained * getattr(self.trained, name) + frozen * getattr(self.frozen, name)

        states = ModelStates(
            parameters=total("parameters") + self.buffer_bytes,
            master_weights=0.0,
            gradients=total("gradients"),
            optimizer_state=total("optimizer_state"),
            gathered_parameters=total("gathered_parameters"),
        )
        backward = Moment(
            gathered_parameters=self._in_flight_bytes(loads),
            activations=held_activation_bytes + self.input_bytes,
            transient=max(load.passing_bytes for load in loads),
            communication_buffers=0.0 if self.is_alone else self._largest_gradient_bytes(loads),
            workspace=self.workspace_bytes,
        )
        step = Moment(
            activations=self.input_bytes,
            transient=total("optimizer_step"),
            workspace=self.workspace_bytes,
        )
        return worst_moment(states, (backward, step))

    def _in_flight_bytes(self, loads: Sequence[Load]) -> float:
        """Weights gathered for the root and for the blocks in use, the largest of a stage."""
        root = sum(self.gathered_bytes(load.root) for load in loads)
        blocks = [
            heapq.nlargest(
                IN_FLIGHT_UNITS,
                (
                    self.gathered_bytes(unit)
                    for unit in load.blocks
                    for _ in range(min(IN_FLIGHT_UNITS, unit.count))
                ),
            )
            for load in loads
        ]
        return root + max(map(sum, blocks))

    def gathered_bytes(self, unit: Unit) -> float:
        """Weights of a unit that are whole for as long as it is in use."""
        trained, frozen = self.trained.gathered_in_flight, self.frozen.gathered_in_flight
        return unit.trained_elements * trained + unit.frozen_elements * frozen

    def _largest_gradient_bytes(self, loads: Sequence[Load]) -> float:
        units = [unit.trained_elements for load in loads for unit in load.units if unit.count]
        return STORED_BYTES * max(units, default=0.0)


def _held_bytes(each: WeightBytes) -> float:
    """Bytes that an element takes during the whole step."""
    return each.parameters + each.gradients + each.optimizer_state + each.gathered_parameters
