"""The picture of a step: a row for each rank, a block for each action, time along x."""

from __future__ import annotations

from collections.abc import Iterator

from autoplan.plan import Plan
from autoplan.report import units
from autoplan.report.html.markup import WIDTH, Markup, element, percent_of, picture, stretched
from autoplan.report.html.windows import CLEAR_SPANS, Window
from autoplan.report.step import Step

COLOURS = {
    "F": "fw",
    "B": "bw",
    "I": "bw",
    "W": "wt",
    "head": "cm",
    "tail": "cm",
    "optimizer": "op",
}
"""Of what a rank does, classes of the style."""

MESSAGES = "cm"
_ROW, _BAR, _AXIS = 30, 22, 22
_TICKS = 4
_NUMBERED_SHARE = 0.015


def step_picture(plan: Plan, step: Step, window: Window, title: str, description: str) -> Markup:
    """A figure of part of a step."""
    height = len(window.ranks) * _ROW
    drawing = picture(
        title,
        description,
        stretched(_blocks(step, window), height=height),
        *_numbers(step, window),
        *_axis(window, height),
        height=height + _AXIS,
    )
    names = [
        element("span", f"rank {rank}" if plan.stages else "a device") for rank in window.ranks
    ]
    labels = element("div", *names, class_="ranks", aria_hidden="true")
    return element("figure", labels, drawing, class_="timeline")


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
        for span in window.inside(step, rank):
            draw(COLOURS[span.kind], top, span.start_s, span.stop_s - span.messages_s)
            draw(MESSAGES, top, span.stop_s - span.messages_s, span.stop_s)
    spaced = " spaced" if window.most_spans(step) <= 2 * CLEAR_SPANS else ""
    for colour, parts in paths.items():
        yield element("path", class_=colour + spaced, d="".join(parts))


def _numbers(step: Step, window: Window) -> Iterator[Markup]:
    """Microbatches, where there is room for their numbers on a wide page."""
    if window.most_spans(step) > CLEAR_SPANS:
        return
    for row, rank in enumerate(window.ranks):
        for span in window.inside(step, rank):
            if span.microbatch is not None and span.seconds > _NUMBERED_SHARE * window.seconds:
                at = percent_of(window.share((span.start_s + span.stop_s) / 2), 1)
                y = row * _ROW + _ROW // 2 + 4
                name = f"mb on-{COLOURS[span.kind]}"
                yield element("text", span.microbatch, class_=name, x=at, y=y)


def _axis(window: Window, top: float) -> list[Markup]:
    shapes = []
    for number in range(_TICKS + 1):
        at = f"{100 * number / _TICKS:g}%"
        anchor = "start" if number == 0 else "end" if number == _TICKS else "middle"
        shapes.append(element("line", class_="tick", x1=at, x2=at, y1=top, y2=top + 5))
        label = units.seconds(window.start_s + window.seconds * number / _TICKS)
        shapes.append(element("text", label, class_="axis", x=at, y=top + 17, text_anchor=anchor))
    return shapes
