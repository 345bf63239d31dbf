"""Bytes of one pipeline rank by category, at the worst of the moments of its step.

With I microbatches held at once, the backward holds I times what a stage keeps of one. What passes
beside it differs by moment:

- in the backward of the *tail*, what lies behind the last block, an operator of it;
- in the backward of the blocks, the region that makes or moves most at once, gradients of a block
  on their way, and those of the tail and of weights that several blocks read, which wait for the
  rest of the root. What the tail kept is gone. Where gradients are reduced unit by unit, there are
  none of a block when the first one begins; when it ends, what it kept is gone; and only the second
  has those of the one before it beside its own, when two have let go of what they kept;
- when gradients are reduced behind the backward, a unit of them in a buffer, and no activations but
  those of other stages. Gradients that are summed whole are made in their buckets; those of weights
  that are taken apart from the backward come into them behind it;
- in the optimizer's step its own passing memory.

Where replicas sum every microbatch's gradients, FSDP2 keeps all sums of a backward until it ends:
those of its last block beside no activations.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autoplan.capabilities import bucket_bytes
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

ROUNDING_BYTES = 0.5
"""By which sums of bytes may be above a limit that they meet exactly."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankMemory:
    """Memory of the ranks of one configuration.

    Attributes:
        trained, frozen: bytes of one element, before any split over data-parallel ranks.
        fills_buckets: gradients are moved into the buckets that they are summed in behind the
            backward.
        reduces_each: gradients are reduced in every backward, unit by unit.
        keeps_sums: replicas sum gradients beside those of earlier microbatches.
        most_step_bytes: passing memory of an optimizer that steps one tensor after the other.
        buffer_bytes, input_bytes, workspace_bytes: what every rank holds beside its stages.
        limit_bytes: what there is.
    """

    trained: WeightBytes
    frozen: WeightBytes
    fills_buckets: bool
    reduces_each: bool
    keeps_sums: bool
    buffer_bytes: float
    input_bytes: float
    workspace_bytes: float
    limit_bytes: float
    most_step_bytes: float = math.inf

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

    def held_bytes(self, unit: Unit) -> float:
        """What the parameters of a unit take during the whole step."""
        trained = self.held_per_trained * unit.trained_elements
        return unit.count * (trained + self.held_per_frozen * unit.frozen_elements)

    def passing_in_step_bytes(self, unit: Unit) -> float:
        """What passes of the parameters of a unit while the optimizer steps all tensors at once."""
        trained = self.trained.optimizer_step * unit.trained_elements
        return unit.count * (trained + self.frozen.optimizer_step * unit.frozen_elements)

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
        step = Moment(
            activations=self.input_bytes,
            transient=min(total("optimizer_step"), self.most_step_bytes),
            workspace=self.workspace_bytes,
        )
        moments = (
            *self._backward(loads, held_activation_bytes),
            self._reduction(loads, held_activation_bytes * (1 - 1 / len(loads))),
            step,
        )
        return worst_moment(states, moments)

    def _backward(self, loads: Sequence[Load], held_bytes: float) -> Iterator[Moment]:
        """While activations are held; with several stages, those of a tail stay in the sum."""
        gathered = self._in_flight_bytes(loads)
        tails = [load.tail for load in loads if load.tail is not None]
        for tail in tails:
            yield Moment(
                gathered_parameters=gathered,
                activations=held_bytes + self.input_bytes,
                transient=tail.passing_bytes,
                workspace=self.workspace_bytes,
            )
        of_root = sum(tail.trained_elements for tail in tails)
        of_root += sum(load.waiting_elements for load in loads)
        blocks = (unit for load in loads for unit in load.blocks)
        waiting = self.trained.gradients_made * of_root + self._of_blocks(list(blocks))
        let_go = sum(tail.kept_bytes for tail in tails) if len(loads) == 1 else 0.0
        sums = self._sums_bytes(loads)
        ends = ((held_bytes - let_go, 0.0), (0.0, sums)) if sums else ((held_bytes - let_go, 0.0),)
        for activations, summed in ends:
            yield Moment(
                gathered_parameters=gathered,
                activations=activations + self.input_bytes,
                transient=max(load.passing_bytes for load in loads),
                communication_buffers=waiting + summed,
                workspace=self.workspace_bytes,
            )

    def _reduction(self, loads: Sequence[Load], held_bytes: float) -> Moment:
        """Behind the backward of a stage, of which nothing is held.

        A unit lets go of its gathered weights before its gradients are put in a buffer.
        """
        units = [unit.trained_elements for load in loads for unit in load.units if unit.count]
        sent = self.trained.gradients_sent * max(units)
        if self.fills_buckets:
            trained = sum(u.count * u.trained_elements for load in loads for u in load.units)
            sent = min(bucket_bytes(STORED_BYTES * trained), STORED_BYTES * trained)
        made = sum(self.trained.gradients_made * load.root.trained_elements for load in loads)
        is_last = bool(self.trained.gradients_sent) and not self.reduces_each
        return Moment(
            gathered_parameters=-is_last * self.trained.gathered_parameters * max(units),
            activations=held_bytes + self.input_bytes,
            communication_buffers=sent + made * self.reduces_each + self._sums_bytes(loads),
            workspace=self.workspace_bytes,
        )

    def _sums_bytes(self, loads: Sequence[Load]) -> float:
        """Sums over replicas that wait for the end of the backward."""
        trained = sum(unit.count * unit.trained_elements for load in loads for unit in load.units)
        return trained * self.trained.gradients * self.keeps_sums

    def _of_blocks(self, blocks: Sequence[Unit]) -> float:
        """Gradients of blocks on their way, less what their backward has let go of by then."""
        largest = max((unit.trained_elements for unit in blocks), default=0.0)
        kept = min((unit.kept_bytes for unit in blocks), default=0.0)
        count = sum(unit.count for unit in blocks)
        waiting = Unit(trained_elements=largest, frozen_elements=0.0, count=count, kept_bytes=kept)
        return self.least_gradient_bytes(waiting) + self.reduced_bytes(waiting)

    def least_gradient_bytes(self, unit: Unit) -> float:
        """Gradients of a block at the fullest moment of its backward, whatever it kept."""
        return 0.0 if self.reduces_each else unit.trained_elements * self.trained.gradients_made

    def reduced_bytes(self, unit: Unit) -> float:
        """Gradients that blocks reduce one by one, less what their backward let go of by then."""
        return max(
            self.reducing_bytes(unit, let_go) - let_go * unit.kept_bytes
            for let_go in range(1 + min(unit.count, 2) * self.reduces_each)
        )

    def reducing_bytes(self, unit: Unit, let_go: int) -> float:
        """Gradients of a block that is reduced when so many have let go of what they kept."""
        made = self.trained.gradients_made * unit.trained_elements
        sent = self.trained.gradients_sent * unit.trained_elements
        return (0.0, max(made, sent), made + sent)[let_go]

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


def _held_bytes(each: WeightBytes) -> float:
    """Bytes that an element takes during the whole step."""
    return each.parameters + each.gradients + each.optimizer_state + each.gathered_parameters
