"""What probes are measured on: a clock, the ranks that measure together, and things to run.

``torch_bench`` is the real one. Tests have one whose clock moves by closed forms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from autoplan.profiler.probes import Compute, Exchange, HostCopy, HostWork, Overlap

Run = Callable[[], None]


class Clock(Protocol):
    """Seconds, once all that was started is done."""

    def wall_s(self) -> float:
        """Of the world."""
        ...

    def own_s(self) -> float:
        """That this process and its device worked, where that can be told from the wall's."""
        ...

    def host_s(self) -> float:
        """That this thread worked, without what others of the process did meanwhile."""
        ...


@dataclass(frozen=True, slots=True)
class Overlapped:
    """The same message and the same compute: each alone, and one beside the other."""

    message: Run
    compute: Run
    both: Run


@dataclass(frozen=True, slots=True)
class Compared:
    """A program with messages, and the same without."""

    sending: Run
    alone: Run


class Bench(Protocol):
    """The ranks of one job; every rank calls the same methods in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def clock(self) -> Clock: ...

    def compute(self, probe: Compute, *, in_use: int = 1) -> Run:
        """Runs the operator once; ``in_use`` devices do so at the same time."""
        ...

    def exchange(self, probe: Exchange) -> Run | None:
        """Sends once, on every rank of a group that takes part; None on the others."""
        ...

    def overlap(self, probe: Overlap) -> Overlapped | None:
        """On the ranks that take part; None on the others."""
        ...

    def host_work(self, probe: HostWork) -> Compared | None:
        """On the two ranks that take part; None on the others."""
        ...

    def host_copy(self, probe: HostCopy) -> Run: ...

    def workspace_bytes(self) -> int: ...

    def barrier(self) -> None: ...

    def largest(self, values: Sequence[float]) -> list[float]:
        """The largest of all ranks' values, place by place."""
        ...
