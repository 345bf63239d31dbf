"""Why a plan is not the one chosen: what takes longer, or which memory is too much."""

from __future__ import annotations

from dataclasses import fields
from typing import Protocol

from cost_models.memory import MemoryBreakdown

# Parts of the step are told when they differ by more than this fraction of the largest difference.
_TOLD = 0.1
_PARTS = {
    "compute": "compute_s",
    "exposed communication": "exposed_comm_s",
    "bubble": "bubble_s",
    "optimizer time": "optimizer_s",
}


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


def largest_category(memory: MemoryBreakdown) -> tuple[str, int]:
    """The category that takes most, in words, and its bytes."""
    found = (
        (field.name.replace("_", " "), getattr(memory, field.name)) for field in fields(memory)
    )
    return max(found, key=lambda item: item[1])
