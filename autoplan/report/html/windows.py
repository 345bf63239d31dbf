"""What of a step is drawn: ranks and moments, so that a page stays small and blocks can be seen."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autoplan.report.step import Span, Step

CLEAR_SPANS = 60
"""Blocks beside one another that can be told apart on the width of a page."""

_MOST_SPANS = 3000
_MOST_RANKS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """What of a step is drawn: some ranks, between two moments."""

    ranks: tuple[int, ...]
    start_s: float
    stop_s: float

    @property
    def seconds(self) -> float:
        return self.stop_s - self.start_s

    def share(self, at_s: float) -> float:
        """Where a moment is along x, from 0 to 1."""
        inside_s = min(max(at_s, self.start_s), self.stop_s) - self.start_s
        return inside_s / self.seconds if self.seconds else 0.0

    def inside(self, step: Step, rank: int) -> list[Span]:
        """Spans of a rank that can be seen."""
        return [
            span
            for span in step.spans[rank]
            if span.start_s < self.stop_s and span.stop_s > self.start_s
        ]

    def most_spans(self, step: Step) -> int:
        """The most that a rank has inside."""
        return max(len(self.inside(step, rank)) for rank in self.ranks)


def whole_window(step: Step) -> Window:
    """As much as can be drawn: at most 16 ranks, first and last among them, and so many actions."""
    count = len(step.spans)
    shown = min(count, _MOST_RANKS)
    ranks = tuple(sorted({round(i * (count - 1) / max(1, shown - 1)) for i in range(shown)}))
    each = max(1, _MOST_SPANS // len(ranks))
    stops = [step.spans[rank][each - 1].stop_s for rank in ranks if len(step.spans[rank]) > each]
    return Window(ranks=ranks, start_s=0.0, stop_s=min([step.stop_s, *stops]))


def closer(step: Step, whole: Window) -> list[tuple[str, Window]]:
    """Start and end of a step that has too many actions for the width of a page."""
    first = step.spans[0]
    if len(first) <= 2 * CLEAR_SPANS:
        return []
    start = replace(whole, stop_s=first[CLEAR_SPANS - 1].stop_s)
    end = replace(whole, start_s=first[-CLEAR_SPANS].start_s, stop_s=step.stop_s)
    return [("The start, closer", start), ("The end, closer", end)]
