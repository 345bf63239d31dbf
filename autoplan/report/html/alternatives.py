"""The plan beside others, with the error of the model, and why each of them lost."""

from __future__ import annotations

from autoplan.plan import Alternative, Plan
from autoplan.report import units, words
from autoplan.report.html.markup import Markup, element, percent_of, picture, section, table
from autoplan.report.recompute import recompute_share
from autoplan.report.trust import StepError, within_error

_BAR = 18


def alternatives(plan: Plan, error: StepError | None) -> Markup:
    """The section on why this plan."""
    parts = [_bars(plan, error), _closeness(plan, error), _table(plan)]
    return section("Against other plans", *parts, id_="alternatives")


def _bars(plan: Plan, error: StepError | None) -> Markup:
    timed = [other for other in plan.alternatives if other.step_s is not None]
    reach = 1 + (error.median if error else 0.0)
    longest = max([plan.estimate.step_s, *(other.step_s or 0.0 for other in timed)]) * reach
    rows = [_row("this plan", plan.estimate.step_s, longest, "best", "", error)]
    for other in timed:
        step_s = other.step_s or 0.0
        added = _added(step_s, plan.estimate.step_s) if other.fits else "does not fit"
        colour = "other" if other.fits else "unfit"
        rows.append(_row(other.name, step_s, longest, colour, added, error))
    note = f"full width: {units.seconds(longest)}; times are of the same cost model"
    if error:
        note += f"; lines: its median error on published runs, {units.percent(error.median)}"
    return element(
        "figure", element("div", *rows, class_="bars"), element("p", note, class_="note")
    )


def _row(
    name: str, step_s: float, longest_s: float, colour: str, added: str, error: StepError | None
) -> Markup:
    middle = _BAR / 2
    shapes = [
        element("rect", class_=colour, x=0, y=0, width=percent_of(step_s, longest_s), height=_BAR)
    ]
    if error:
        low, high = (
            percent_of(step_s * factor, longest_s)
            for factor in (1 - error.median, 1 + error.median)
        )
        ends = ((low, high, middle, middle), (low, low, 4, _BAR - 4), (high, high, 4, _BAR - 4))
        shapes += [
            element("line", class_="whisker", x1=x1, x2=x2, y1=y1, y2=y2) for x1, x2, y1, y2 in ends
        ]
    shown = ", ".join(filter(None, (units.seconds(step_s), added)))
    drawing = picture(f"Step time of {name}", shown, *shapes, height=_BAR)
    return element("div", element("span", name), drawing, element("span", shown))


def _added(step_s: float, ours_s: float) -> str:
    """``+4.6 %``."""
    share = step_s / ours_s - 1
    return f"{'+' if share >= 0 else '-'}{units.percent(abs(share))}"


def _closeness(plan: Plan, error: StepError | None) -> Markup | None:
    if error is None:
        return None
    near = within_error(plan, error)
    if not near:
        text = "No other plan that fits is within the model's error of this one."
    else:
        names = "; ".join(other.name for other in near)
        text = (
            f"Within the model's error of this plan: {names}. Errors of plans for one job go "
            "largely together, but the order of these is not sure: measure them where it matters."
        )
    return element("p", text)


def _table(plan: Plan) -> Markup:
    rows = [
        (
            "this plan",
            words.decided(plan),
            str(plan.num_microbatches),
            units.seconds(plan.estimate.step_s),
            units.nbytes(plan.estimate.peak_memory_bytes),
            recompute_share(plan),
            "",
        )
    ]
    rows += [_cells(other) for other in plan.alternatives]
    columns = ("plan", "decisions", "microbatches", "step", "memory", "recompute", "why it lost")
    return table("Plans that were compared", columns, rows, numbers=(2, 3, 4), wraps=(1, 6))


def _decided(other: Alternative) -> str:
    return words.decisions(
        other.mesh,
        schedule=other.schedule,
        stages_per_rank=other.stages_per_rank,
        zero_stage=other.zero,
        replicas=other.replicas,
    )


def _cells(other: Alternative) -> tuple[str, ...]:
    return (
        other.name,
        _decided(other),
        str(other.num_microbatches),
        "-" if other.step_s is None else units.seconds(other.step_s),
        units.nbytes(other.peak_memory_bytes),
        other.recompute,
        other.reason,
    )
