"""The step as it was simulated, a row for each rank of the pipeline."""

from __future__ import annotations

from autoplan.plan import Plan
from autoplan.report import schedules, units, words
from autoplan.report.html.drawing import COLOURS, MESSAGES, step_picture
from autoplan.report.html.markup import (
    Markup,
    element,
    join,
    key,
    legend,
    section,
    stacked,
    table,
)
from autoplan.report.html.windows import Window, closer, whole_window
from autoplan.report.step import Step

_NAMES = {
    "F": "forward",
    "B": "backward",
    "I": "backward, for inputs",
    "W": "backward, for weights",
    "head": "messages that show",
    "tail": "messages that show",
    "optimizer": "optimizer",
}
_COLOURS = dict(zip(words.COMPONENTS.values(), ("fw", "cm", "bubble", "op"), strict=True))
OLD_FILE = (
    "The plan file is of an older version, which does not hold the seconds of each stage; plan "
    "again to see the step over time."
)


def timeline(plan: Plan, step: Step | None) -> Markup:
    """The section on where the time of one step goes."""
    parts: list[Markup | None] = [_parts(plan)]
    if step is None:
        parts.append(element("p", OLD_FILE))
    else:
        whole, said = whole_window(step), _description(plan)
        parts += [
            step_picture(plan, step, whole, "Timeline of one training step", said),
            _legend(plan, step),
            _note(plan, step, whole),
        ]
        for name, window in closer(step, whole):
            parts += [element("h3", name), step_picture(plan, step, window, name, said)]
    return section("Time of one step", *parts, id_="time")


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


def _description(plan: Plan) -> str:
    parts = ", ".join(f"{name} {units.seconds(s)}" for name, s in words.time_parts(plan.estimate))
    schedule = f"{schedules.sentence(plan)}. " if plan.stages else ""
    rows = "A row for each rank of the pipeline, time" if plan.stages else "Time"
    return f"{schedule}{rows} from left to right: {parts}."


def _legend(plan: Plan, step: Step) -> Markup:
    kinds = {span.kind for spans in step.spans for span in spans}
    entries = {COLOURS[kind]: name for kind, name in _NAMES.items() if kind in kinds}
    if any(span.messages_s > 0 for spans in step.spans for span in spans):
        entries[MESSAGES] = "messages that show"
    if plan.stages:
        entries["idle"] = "waiting for other ranks"
    return legend(entries.items())


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
