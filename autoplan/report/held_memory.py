"""Memory of a rank over the step: what it always holds, and activations as they come and go.

All categories but activations and what passes count as at the rank's worst moment. Activations of a
microbatch are counted from the start of its forward to the end of its backward (W where that is
split), which is when the plan's peak is taken; within an action nothing is known, so that they
come and go at once.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from autoplan.plan import Plan
from autoplan.report.step import Step


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldMemory:
    """Bytes of a rank over the step.

    Attributes:
        always_bytes: all that is held throughout.
        passing_bytes: what passes for a moment, beside activations, at the worst moment.
        worst_in_optimizer: whether that moment is the optimizer's; else it is in a backward.
        moments: ascending seconds, each with the activations held from then on; the first is the
            start of the step.
    """

    always_bytes: int
    passing_bytes: int
    worst_in_optimizer: bool
    moments: tuple[tuple[float, int], ...]

    @property
    def most_activations_bytes(self) -> int:
        """Of the microbatches in flight."""
        return max(nbytes for _, nbytes in self.moments)

    @property
    def peak_bytes(self) -> int:
        """At the worst moment."""
        held = 0 if self.worst_in_optimizer else self.most_activations_bytes
        return self.always_bytes + self.passing_bytes + held


def held_memory(plan: Plan, step: Step, rank: int) -> HeldMemory:
    """The memory of a rank over a step of the plan."""
    kept = [timing.kept_bytes for timing in plan.estimate.timings]
    ends_with = "W" if step.shape.splits_backward else "B"
    changes: dict[float, int] = defaultdict(int)
    for span in step.spans[rank]:
        if span.stage is None:
            continue
        if span.kind == "F":
            changes[span.start_s] += kept[span.stage]
        elif span.kind == ends_with:
            changes[span.stop_s] -= kept[span.stage]
    moments, held = [(0.0, 0)], 0
    for moment_s in sorted(changes):
        held += changes[moment_s]
        moments.append((moment_s, held))
    memory = plan.estimate.stages[rank].memory
    peak = max(nbytes for _, nbytes in moments)
    # The optimizer's step has no activations: less is written than the schedule holds.
    in_optimizer = memory.activations < peak
    rest = memory.activations if in_optimizer else memory.activations - peak
    return HeldMemory(
        always_bytes=memory.total - memory.activations - memory.transient + rest,
        passing_bytes=memory.transient,
        worst_in_optimizer=in_optimizer,
        moments=tuple(moments),
    )
