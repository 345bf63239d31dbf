"""Plans that were not chosen, and why not."""

from __future__ import annotations

from typing import Protocol

from autoplan.plan import Alternative, MeshPlan
from autoplan.search.estimate import step_times
from autoplan.search.found import Found
from autoplan.search.memory import largest_category, memory_of_plan
from autoplan.search.pricing import Pricing
from autoplan.search.problem import PAGE_BYTES

_GIB = 2**30
# Parts of the step are told when they differ by more than this fraction of the largest difference.
_TOLD = 0.1
_PARTS = {
    "compute": "compute_s",
    "exposed communication": "exposed_comm_s",
    "bubble": "bubble_s",
    "optimizer time": "optimizer_s",
}


def alternative(pricing: Pricing, name: str, found: Found, best: Found) -> Alternative:
    """A plan beside the best one."""
    memory = memory_of_plan(pricing, found)
    fits = found.memory_pages <= pricing.limit_pages
    if fits:
        ours, theirs = step_times(pricing, best), step_times(pricing, found)
        reason = "this plan" if found == best else slower(ours, theirs)
    else:
        over = (found.memory_pages - pricing.limit_pages) * PAGE_BYTES / _GIB
        category, largest = largest_category(memory)
        reason = f"does not fit by {over:.1f} GiB ({category}: {largest / _GIB:.1f} GiB)"
    candidate = found.candidate
    return Alternative(
        name=name,
        mesh=MeshPlan(dp=candidate.dp, tp=candidate.tp),
        zero=candidate.zero,
        num_microbatches=candidate.num_microbatches,
        recompute=_recompute(pricing, found),
        step_s=step_times(pricing, found).step_s,
        peak_memory_bytes=memory.total,
        fits=fits,
        reason=reason,
    )


class Timed(Protocol):
    """The parts of a step, whatever else they stand beside."""

    @property
    def step_s(self) -> float: ...
    @property
    def compute_s(self) -> float: ...
    @property
    def exposed_comm_s(self) -> float: ...
    @property
    def bubble_s(self) -> float: ...
    @property
    def optimizer_s(self) -> float: ...


def slower(ours: Timed, theirs: Timed) -> str:
    """By how much theirs takes longer, and which parts of the step make it so."""
    more = theirs.step_s / ours.step_s - 1
    if more < 5e-4:
        return "as fast"
    added = {name: getattr(theirs, part) - getattr(ours, part) for name, part in _PARTS.items()}
    largest = max(added.values())
    told = [
        f"{_readable(abs(seconds))} {'more' if seconds > 0 else 'less'} {name}"
        for name, seconds in sorted(added.items(), key=lambda item: -item[1])
        if abs(seconds) > _TOLD * largest
    ]
    return f"{100 * more:.1f} % slower: {', '.join(told)}"


def _readable(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _recompute(pricing: Pricing, found: Found) -> str:
    total = sum(pricing.folded.copies(kind) for kind in pricing.folded.kinds)
    if found.count in (0, total):
        return "full" if found.count else "none"
    return f"{found.count} of {total} blocks"
