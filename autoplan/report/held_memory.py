"""Memory of a rank over the step: what it always holds, and activations as they come and go.

All categories but activations, and but buffers and tensors that pass, count as at the rank's worst
moment; some activations can be gone by then. Those of a microbatch grow through its forward and go
through its backward (W where that is split), which is how the plan's peak is counted. Within an
action they are taken to grow and go evenly, as they do where blocks are alike.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.plan import Plan
from autoplan.report.step import Step


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldMemory:
    """Bytes of a rank over the step.

    Attributes:
        always_bytes: all that is held throughout.
        passing_bytes: what passes beside activations at the worst moment.
        moments: ascending seconds with the activations held then, from the start of the step;
            they change evenly in between.
    """

    always_bytes: int
    passing_bytes: int
    moments: tuple[tuple[float, int], ...]

    @property
    def most_activations_bytes(self) -> int:
        """Of the microbatches in flight."""
        return max(nbytes for _, nbytes in self.moments)

    @property
    def most_bytes(self) -> int:
        """The most without what passes; no more than the plan's peak."""
        return self.always_bytes + self.most_activations_bytes


def held_memory(plan: Plan, step: Step, rank: int) -> HeldMemory:
    """The memory of a rank over a step of the plan."""
    kept = [timing.kept_bytes for timing in plan.estimate.timings]
    ends_with = "W" if step.shape.splits_backward else "B"
    moments, held = [(0.0, 0)], 0
    for span in step.spans[rank]:
        if span.stage is None or span.kind not in ("F", ends_with):
            continue
        moments.append((span.start_s, held))
        held += kept[span.stage] if span.kind == "F" else -kept[span.stage]
        moments.append((span.stop_s, held))
    moments = [*dict.fromkeys(moments)]
    memory = plan.estimate.stages[rank].memory
    peak = max(nbytes for _, nbytes in moments)
    passing = memory.transient + memory.communication_buffers
    # Inputs are among the activations: what the schedule does not explain is held throughout.
    inputs = max(0, memory.activations - peak)
    return HeldMemory(
        always_bytes=memory.total - memory.activations - passing + inputs,
        passing_bytes=passing,
        moments=tuple(moments),
    )
