"""Memory by rank and category against the budget, and over the step."""

from __future__ import annotations

from autoplan.plan import Plan
from autoplan.report import units
from autoplan.report.fold import ranges
from autoplan.report.held_memory import HeldMemory, held_memory
from autoplan.report.html.markup import (
    WIDTH,
    Markup,
    element,
    legend,
    picture,
    section,
    stacked,
    stretched,
    table,
)
from autoplan.report.html.windows import whole_window
from autoplan.report.modules import COLUMNS, NOTE, dominant, module_rows
from autoplan.report.step import Step
from autoplan.report.words import MEMORY_NAMES
from cost_models.memory import MemoryBreakdown

_MOST_COLUMNS = 4
_MOST_MODULES = 30
_CURVE, _CURVE_GAP = 72, 22
_MOST_CURVES = 4


def memory(plan: Plan, step: Step | None) -> Markup:
    """The section on memory."""
    parts = [_bars(plan), _legend(plan), _table(plan)]
    if step is not None:
        parts += _over_step(plan, step)
    parts += _by_module(plan)
    return section("Memory of a device", *parts, id_="memory")


def _categories(plan: Plan) -> list[str]:
    """Those that any rank has."""
    memories = [stage.memory for stage in plan.estimate.stages]
    return [name for name in MEMORY_NAMES if any(getattr(each, name) for each in memories)]


def _alike(plan: Plan) -> list[tuple[str, MemoryBreakdown]]:
    """Neighbours of equal memory together, with the numbers of their ranks."""
    groups: list[tuple[list[int], MemoryBreakdown]] = []
    for rank, stage in enumerate(plan.estimate.stages):
        if groups and groups[-1][1] == stage.memory:
            groups[-1][0].append(rank)
        else:
            groups.append(([rank], stage.memory))
    if not plan.stages:
        return [("each device", groups[0][1])]
    return [(f"rank {ranges(ranks)}", memory) for ranks, memory in groups]


def _bars(plan: Plan) -> Markup:
    """Stacked bars; the whole width is the limit, or the fullest rank where that is above it."""
    limit = plan.estimate.memory_limit_bytes
    full = max(limit, *(stage.memory.total for stage in plan.estimate.stages))
    rows = []
    for name, each in _alike(plan):
        drawing = _bar(name, each, limit, full)
        total = f"{units.nbytes(each.total)}, {units.percent(each.total / limit)}"
        rows.append(element("div", element("span", name), drawing, element("span", total)))
    ends = f"full width: {units.nbytes(full)}" + (
        f"; line: limit of {units.nbytes(limit)}" if full > limit else ", the limit"
    )
    note = element("p", ends, class_="note")
    return element("figure", element("div", *rows, class_="bars"), note)


def _bar(name: str, each: MemoryBreakdown, limit: int, full: int) -> Markup:
    parts = [
        (f"m-{category}", words, getattr(each, category))
        for category, words in MEMORY_NAMES.items()
        if getattr(each, category)
    ]
    line = limit if full > limit else None
    return stacked(f"Memory of {name}", parts, full, units.nbytes, limit=line)


def _legend(plan: Plan) -> Markup:
    return legend((f"m-{name}", MEMORY_NAMES[name]) for name in _categories(plan))


def _table(plan: Plan) -> Markup:
    """A row for each category; for each rank where those are many."""
    limit = plan.estimate.memory_limit_bytes
    groups, categories = _alike(plan), _categories(plan)
    names = [*(MEMORY_NAMES[name] for name in categories), "total", "of the limit"]
    columns = [("category", *names)]
    for name, each in groups:
        values = [units.nbytes(getattr(each, category)) for category in categories]
        share = units.percent(each.total / limit)
        columns.append((name, *values, units.nbytes(each.total), share))
    rows = columns if len(groups) > _MOST_COLUMNS else [*zip(*columns, strict=True)]
    head, *body = rows
    return table(
        f"Memory by category at the worst moment; limit {units.nbytes(limit)} a device",
        head,
        body,
        numbers=range(1, len(head)),
    )


def _by_module(plan: Plan) -> list[Markup]:
    """What takes most, the rest where it is asked for."""
    first = dominant(plan)
    if first is None:
        return []
    rows = [*module_rows(plan)]
    found = table("Memory by module", COLUMNS, rows, numbers=range(1, len(COLUMNS)), wraps=(0,))
    if len(rows) > _MOST_MODULES:
        found = element("details", element("summary", f"All {len(rows)} modules"), found)
    return [
        element("h3", "By module"),
        element("p", first),
        found,
        element("p", NOTE, class_="note"),
    ]


def _over_step(plan: Plan, step: Step) -> list[Markup]:
    """What each rank holds over the step, of ranks that are unlike one another."""
    stop_s = whole_window(step).stop_s
    count = len(step.spans)
    shown = (
        sorted({0, count - 1, count // 3, 2 * count // 3})
        if count > _MOST_CURVES
        else [*range(count)]
    )
    shapes = []
    for row, rank in enumerate(shown):
        held = held_memory(plan, step, rank)
        name = f"rank {rank}" if plan.stages else "each device"
        curve = _curve(name, held, plan.estimate.memory_limit_bytes, stop_s)
        at = f"translate(0 {row * (_CURVE + _CURVE_GAP)})"
        shapes.append(element("g", *curve, transform=at))
    drawing = picture(
        "Memory over one step",
        "What is held throughout, and above it the activations of the microbatches in flight.",
        *shapes,
        height=len(shown) * (_CURVE + _CURVE_GAP),
    )
    entries = (("always", "held throughout"), ("m-activations", "activations in flight"))
    text = (
        f"From the start of the step to {units.seconds(stop_s)}; full height: limit of "
        f"{units.nbytes(plan.estimate.memory_limit_bytes)}. What passes for a moment "
        f"beside these is in the table."
    )
    return [
        element("h3", "Over one step"),
        element("figure", drawing),
        legend(entries),
        element("p", text, class_="note"),
    ]


def _curve(name: str, held: HeldMemory, limit: int, stop_s: float) -> list[Markup]:
    full = max(limit, held.most_bytes)

    def height(nbytes: float) -> float:
        return round(_CURVE * nbytes / full, 2)

    bottom = _CURVE - height(held.always_bytes)
    points = [
        f"{round(WIDTH * moment_s / stop_s) if stop_s else 0} {bottom - height(nbytes):.5g}"
        for moment_s, nbytes in held.moments
        if moment_s <= stop_s
    ]
    last = points[-1].split()[0]
    path = f"M0 {_CURVE}L{'L'.join(points)}L{last} {_CURVE}z"
    curve = element("path", class_="m-activations", d=path)
    always = element(
        "rect", class_="always", y=bottom, width=WIDTH, height=height(held.always_bytes)
    )
    track = element("rect", class_="track", width=WIDTH, height=_CURVE)
    return [
        element("text", f"{name}: {_rise(held)}", class_="axis", y=_CURVE_GAP - 6),
        stretched((track, curve, always), height=_CURVE, y=_CURVE_GAP),
    ]


def _rise(held: HeldMemory) -> str:
    most = units.nbytes(held.most_activations_bytes)
    return f"{units.nbytes(held.always_bytes)} throughout, activations up to {most}"
