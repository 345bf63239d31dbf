"""What measuring a training step showed: seconds and bytes, by rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Seconds of repeated steps: the median, and the quartiles."""

    median_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RankMeasurement:
    """One rank: medians over steps.

    Attributes:
        pp_rank: its place in the pipeline.
        busy_s: from the start of the step on all ranks to this rank's end of it.
        optimizer_s: the optimizer's step.
        forward_s, backward_s: all passes of a step, with the messages within; None on devices that
            run behind the host.
        waiting_s: of ``busy_s``, waiting for messages, which are those of the pipeline too; None on
            such devices.
        peak_bytes: the most that lived at once in a step, without the device's context.
        held_bytes: what of it is held between passes, by category of ``MemoryBreakdown``.
    """

    rank: int
    pp_rank: int
    busy_s: float
    optimizer_s: float
    peak_bytes: int
    held_bytes: Mapping[str, int]
    forward_s: float | None = None
    backward_s: float | None = None
    waiting_s: float | None = None

    @property
    def compute_s(self) -> float | None:
        """What is neither the optimizer nor waiting for messages."""
        if self.waiting_s is None:
            return None
        return self.busy_s - self.optimizer_s - self.waiting_s


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageMeasurement:
    """One kind of message, as the backend calls it, on the rank where it took longest in a step.

    ``seconds`` are from the start of each to its end, hidden or not, with waits for other ranks.
    """

    kind: str
    count: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMeasurement:
    """Training steps of a parallel module, the same on every rank.

    Attributes:
        steps: how many were timed.
        step_s: from all ranks being ready to the last being done, the optimizer included.
        other_load: the share of a machine's processor time that other processes took meanwhile, of
            the machine where it is largest; None where the system does not tell.
        messages: empty where none are sent, or the backend does not tell.
    """

    steps: int
    step_s: Spread
    ranks: tuple[RankMeasurement, ...]
    messages: tuple[MessageMeasurement, ...] = ()
    other_load: float | None = None

    @property
    def peak_bytes(self) -> int:
        """Of the fullest rank."""
        return max(rank.peak_bytes for rank in self.ranks)
