"""The step as it was simulated, a row for each rank of the pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from autoplan.plan import Plan
from autoplan.report import schedules, units, words
from autoplan.report.html.markup import (
    WIDTH,
    Markup,
    element,
    join,
    key,
    legend,
    percent_of,
    picture,
    section,
    stacked,
    stretched,
    table,
)
from autoplan.report.step import Span, Step

_MOST_SPANS = 3000
_MOST_RANKS = 16
_CLEAR_SPANS = 60
_ROW, _BAR, _AXIS = 30, 22, 22
_TICKS = 5
_NUMBERED_SHARE = 0.015
_KINDS = {
    "F": ("fw", "forward"),
    "B": ("bw", "backward"),
    "I": ("bw", "backward, for inputs"),
    "W": ("wt", "backward, for weights"),
    "head": ("cm", "messages that show"),
    "tail": ("cm", "messages that show"),
    "optimizer": ("op", "optimizer"),
}
_COLOURS = dict(zip(words.COMPONENTS.values(), ("fw", "cm", "idle", "op"), strict=True))
OLD_FILE = (
    "The plan file is of an older version, which does not hold the seconds of each stage; plan "
    "again to see the step over time."
)


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


def timeline(plan: Plan, step: Step | None) -> Markup:
    """The section on where the time of one step goes."""
    parts: list[Markup | None] = [_parts(plan)]
    if step is None:
        parts.append(element("p", OLD_FILE))
    else:
        whole = whole_window(step)
        parts += [_picture(plan, step, whole, "Timeline of one training step"), _legend(step)]
        parts.append(_note(plan, step, whole))
        for name, window in _closer(step, whole):
            parts += [element("h3", name), _picture(plan, step, window, name)]
    return section("Time of one step", *parts, id_="time")


def whole_window(step: Step) -> Window:
    """As much as can be drawn: at most 16 ranks, first and last among them, and so many actions."""
    count = len(step.spans)
    shown = min(count, _MOST_RANKS)
    ranks = tuple(sorted({round(i * (count - 1) / max(1, shown - 1)) for i in range(shown)}))
    each = max(1, _MOST_SPANS // len(ranks))
    stops = [step.spans[rank][each - 1].stop_s for rank in ranks if len(step.spans[rank]) > each]
    return Window(ranks=ranks, start_s=0.0, stop_s=min([step.stop_s, *stops]))


def _closer(step: Step, whole: Window) -> list[tuple[str, Window]]:
    """Start and end of a step that has too many actions for the width of a page."""
    first = step.spans[0]
    if len(first) <= 2 * _CLEAR_SPANS:
        return []
    start = replace(whole, stop_s=first[_CLEAR_SPANS - 1].stop_s)
    end = replace(whole, start_s=first[-_CLEAR_SPANS].start_s, stop_s=step.stop_s)
    return [("The start, closer", start), ("The end, closer", end)]


def _parts(plan: Plan) -> Markup:
    estimate = plan.estimate
    parts = words.time_parts(estimate)
    rows: list[tuple[object, ...]] = [
        (
            join(key(_COLOURS[name]), name),
            units.seconds(value_s),
            units.percent(value_s / estimate.step_s),
        )
        for name, value_s in parts
    ]
    rows.append(("step", units.seconds(estimate.step_s), "100 %"))
    caption = "Where the step goes, on the rank that is busy for longest"
    bar = stacked(
        caption,
        [(_COLOURS[name], name, value_s) for name, value_s in parts],
        estimate.step_s,
        units.seconds,
    )
    return join(bar, table(caption, ("part", "time", "of the step"), rows, numbers=(1, 2)))


def _picture(plan: Plan, step: Step, window: Window, title: str) -> Markup:
    height = len(window.ranks) * _ROW
    drawing = picture(
        title,
        _description(plan),
        stretched(_blocks(step, window), height=height),
        *_numbers(step, window),
        *_axis(window, height),
        height=height + _AXIS,
    )
    names = [element("span", f"rank {rank}") for rank in window.ranks]
    labels = element("div", *names, class_="ranks", aria_hidden="true")
    return element("figure", labels, drawing, class_="timeline")


def _description(plan: Plan) -> str:
    parts = ", ".join(f"{name} {units.seconds(s)}" for name, s in words.time_parts(plan.estimate))
    schedule = f"{schedules.sentence(plan)}. " if plan.stages else ""
    return f"{schedule}A row for each rank of the pipeline, time from left to right: {parts}."


def _blocks(step: Step, window: Window) -> Iterator[Markup]:
    """Of each colour, one path through all its blocks; messages stand at the end of an action."""
    paths: dict[str, list[str]] = {"track": []}

    def draw(colour: str, top: int, start_s: float, stop_s: float) -> None:
        left, right = round(WIDTH * window.share(start_s)), round(WIDTH * window.share(stop_s))
        if right > left:
            path = f"M{left} {top}h{right - left}v{_BAR}h{left - right}z"
            paths.setdefault(colour, []).append(path)

    for row, rank in enumerate(window.ranks):
        top = row * _ROW + (_ROW - _BAR) // 2
        draw("track", top, window.start_s, window.stop_s)
        for span in step.spans[rank]:
            draw(_KINDS[span.kind][0], top, span.start_s, span.stop_s - span.messages_s)
            draw("cm", top, span.stop_s - span.messages_s, span.stop_s)
    spaced = " spaced" if _most_spans(step, window) <= 2 * _CLEAR_SPANS else ""
    for colour, parts in paths.items():
        yield element("path", class_=colour + spaced, d="".join(parts))


def _most_spans(step: Step, window: Window) -> int:
    """The most that a rank has inside the window."""
    return max(len(_inside(step, rank, window)) for rank in window.ranks)


def _inside(step: Step, rank: int, window: Window) -> list[Span]:
    return [
        span
        for span in step.spans[rank]
        if span.start_s < window.stop_s and span.stop_s > window.start_s
    ]


def _numbers(step: Step, window: Window) -> Iterator[Markup]:
    """Microbatches, where there is room for their numbers on a wide page."""
    if _most_spans(step, window) > _CLEAR_SPANS:
        return
    for row, rank in enumerate(window.ranks):
        for span in _inside(step, rank, window):
            if span.microbatch is not None and span.seconds > _NUMBERED_SHARE * window.seconds:
                at = percent_of(window.share((span.start_s + span.stop_s) / 2), 1)
                y = row * _ROW + _ROW // 2 + 4
                yield element("text", span.microbatch, class_="mb", x=at, y=y)


def _axis(window: Window, top: float) -> list[Markup]:
    shapes = []
    for number in range(_TICKS + 1):
        at = f"{100 * number / _TICKS:g}%"
        anchor = "start" if number == 0 else "end" if number == _TICKS else "middle"
        shapes.append(element("line", class_="tick", x1=at, x2=at, y1=0, y2=top + 4))
        label = units.seconds(window.start_s + window.seconds * number / _TICKS)
        shapes.append(element("text", label, class_="axis", x=at, y=top + 17, text_anchor=anchor))
    return shapes


def _legend(step: Step) -> Markup:
    kinds = {span.kind for spans in step.spans for span in spans}
    entries = dict(_KINDS[kind] for kind in _KINDS if kind in kinds)
    if any(span.messages_s > 0 for spans in step.spans for span in spans):
        entries["cm"] = "messages that show"
    return legend([*entries.items(), ("idle", "waiting for other ranks")])


def _note(plan: Plan, step: Step, window: Window) -> Markup | None:
    notes = []
    if plan.stages:
        notes.append(f"{schedules.sentence(plan)}.")
    if len(window.ranks) < len(step.spans):
        notes.append(f"{len(window.ranks)} of {len(step.spans)} ranks are drawn.")
    if window.stop_s < step.stop_s:
        share = units.percent(window.stop_s / step.stop_s)
        notes.append(f"The first {share} of the step is drawn; it goes on in the same way.")
    return element("p", " ".join(notes), class_="note") if notes else None
