"""How blocks run, as picture and table: operators, placements on ``tp``, messages between."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from autoplan.plan import Plan, RegionPlan
from autoplan.plan_details import MOST_FLOW_OPERATORS, BlockFlow, FlowOperator, TensorRead
from autoplan.report import units
from autoplan.report.flow_boxes import Box, Drawing, drawing_of, sent_text
from autoplan.report.fold import block_pattern, named_blocks
from autoplan.report.html.markup import Markup, element, legend, section, table
from autoplan.report.layered import Layout, layout

_WIDTH, _HEIGHT, _STEP, _EDGE = 190, 40, 66, 4
_LETTERS = 31
_MOST_OPERATORS = 300
"""Of all that are drawn, so that a page stays small."""

_COLUMNS = ("operator", "placement", "reads", "messages", "flops", "in the backward")
_LEGEND = (
    ("p-whole", "whole on every rank of tp"),
    ("p-shard", "split"),
    ("p-partial", "terms of a sum"),
    ("p-message", "message over tp"),
    ("p-again", "runs again in the backward (dashed)"),
)
_NOTE = (
    "From top to bottom: operators of one block, those of a module that follow one another in one "
    "box, with the placement on tp of what they make. Messages are for one microbatch, with the "
    "bytes of the whole tensor; 'back' is for its gradient. What only renames memory is left out."
)


def flows(plan: Plan) -> Markup | None:
    """The section on how blocks run; None where the plan file does not tell."""
    shown = [(flow, _region(plan, flow)) for flow in plan.flows]
    drawn = itertools.accumulate(len(flow.operators) for flow in plan.flows)
    known = [
        (flow, region)
        for (flow, region), count in zip(shown, drawn, strict=True)
        if region is not None and count <= _MOST_OPERATORS
    ]
    untold = _untold(plan)
    if not known and not untold:
        return None
    parts: list[Markup] = []
    for number, (flow, region) in enumerate(known):
        title = _title(plan, region)
        body = (_picture(flow, region, title), _operators(flow, title))
        if number == 0:
            parts += [element("h3", title), *body, legend(_LEGEND)]
        else:
            parts.append(element("details", element("summary", title), *body))
    if len(shown) > len(known):
        parts.append(element("p", f"{len(known)} of {len(shown)} ways are drawn.", class_="note"))
    if untold:
        parts.append(element("p", untold, class_="note"))
    note = element("p", _NOTE, class_="note") if known else None
    return section("How blocks run", note, *parts, id_="flows")


def _untold(plan: Plan) -> str:
    """Which blocks are too large for a flow; plan files without modules, which are older, have
    none at all."""
    told = {flow.block for flow in plan.flows}
    blocks = [
        block
        for region in plan.regions
        if region.blocks and told.isdisjoint(region.blocks)
        for block in region.blocks
    ]
    if not blocks or not plan.estimate.modules:
        return ""
    every = [block for region in plan.regions for block in region.blocks]
    return (
        f"Not drawn, as they have more than {MOST_FLOW_OPERATORS} operators: "
        f"{named_blocks(blocks, every)}. pm.print_source() prints what they run."
    )


def _region(plan: Plan, flow: BlockFlow) -> RegionPlan | None:
    return next((region for region in plan.regions if flow.block in region.blocks), None)


def _title(plan: Plan, region: RegionPlan) -> str:
    """``layers 0-3, 8 of 12 blocks``."""
    every = [block for each in plan.regions for block in each.blocks]
    if len(region.blocks) == len(every):
        return f"{block_pattern(region.blocks)}, all {len(every)} blocks"
    named = named_blocks(region.blocks, every)
    return f"{named}, {len(region.blocks)} of {len(every)} blocks"


def _picture(flow: BlockFlow, region: RegionPlan, title: str) -> Markup:
    drawing = drawing_of(flow, region.inputs)
    placed = layout([_WIDTH] * len(drawing.boxes), drawing.edges)
    width, height = placed.width + 2 * _EDGE, (placed.layers - 1) * _STEP + _HEIGHT + 2 * _EDGE
    messages = sum(box.kind == "message" for box in drawing.boxes)
    svg = element(
        "svg",
        element("title", f"How {title} run"),
        element(
            "desc",
            f"{len(flow.operators)} operators and {messages} messages, in order in the table "
            "behind the picture.",
        ),
        element("path", class_="flow-edge", d="".join(_curves(placed))),
        *_boxes(drawing, placed),
        role="img",
        class_="flow",
        width=f"{width:.0f}",
        height=f"{height:.0f}",
    )
    return element("div", svg, class_="scroll", tabindex=0, role="region", aria_label=title)


def _curves(placed: Layout) -> Iterator[str]:
    """Every edge from below its source to above its target, bent towards its waypoints."""
    for (source, target), places in placed.paths.items():
        first, last = placed.layer[source], placed.layer[target]
        points = [(places[0], first * _STEP + _HEIGHT)]
        points += [
            (x, (first + number) * _STEP + _HEIGHT / 2) for number, x in enumerate(places[1:-1], 1)
        ]
        points.append((places[-1], last * _STEP))
        (x, y), (to, end) = points[0], points[-1]
        if len(points) == 2:
            middle = (y + end) / 2
            yield _path("M", (x, y)) + _path("C", (x, middle), (to, middle), (to, end))
            continue
        yield _path("M", (x, y))
        for (at, by), (after, below) in itertools.pairwise(points[1:]):
            half = (at + after) / 2, (by + below) / 2
            yield _path("Q", (at, by), half if (after, below) != points[-1] else (after, below))


def _path(command: str, *points: tuple[float, float]) -> str:
    return command + " ".join(f"{x + _EDGE:.0f} {y + _EDGE:.0f}" for x, y in points)


def _boxes(drawing: Drawing, placed: Layout) -> Iterator[Markup]:
    for box, x, layer in zip(drawing.boxes, placed.x, placed.layer, strict=True):
        left, top = round(x - _WIDTH / 2 + _EDGE), _EDGE + layer * _STEP
        told = ", ".join(filter(None, (box.told, box.placement if box.kind != "edge" else "")))
        yield element(
            "g",
            element("title", f"{box.name}: {told}{', runs again' if box.recomputed else ''}"),
            element(
                "rect", class_=_colour(box), width=_WIDTH, height=_HEIGHT,
                rx=_HEIGHT // 2 if box.kind == "message" else 4,
            ),
            element("text", _short(box.name), x=_WIDTH // 2, y=17 if told else 25),
            element("text", _short(told), x=_WIDTH // 2, y=32, class_="axis") if told else None,
            transform=f"translate({left} {top})",
        )  # fmt: skip


def _colour(box: Box) -> str:
    if box.kind == "message":
        return "p-message"
    kind = box.placement.partition("(")[0]
    colour = {"Shard": "p-shard", "Partial": "p-partial"}.get(kind, "p-whole")
    return f"{colour} p-again" if box.recomputed else colour


def _short(text: str) -> str:
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}\N{HORIZONTAL ELLIPSIS}"


def _operators(flow: BlockFlow, title: str) -> Markup:
    """The same as a table."""
    rows = [_cells(flow.operators, operator) for operator in flow.operators]
    leaving = tuple(_read(flow.operators, read) for read in flow.outputs)
    sent = "; ".join(filter(None, map(_sent, flow.outputs)))
    rows.append(("leaves the block", "", ", ".join(leaving), sent, "", ""))
    found = table(f"Operators of {title}", _COLUMNS, rows, numbers=(4,), wraps=(0, 2))
    return element("details", element("summary", f"{len(flow.operators)} operators"), found)


def _cells(operators: Sequence[FlowOperator], operator: FlowOperator) -> tuple[str, ...]:
    named = dict.fromkeys(
        _read(operators, read) for read in operator.reads if read.source is not None
    )
    return (
        operator.name,
        operator.placement,
        ", ".join(named),
        "; ".join(filter(None, map(_sent, operator.reads))),
        units.count(operator.flops) if operator.flops else "",
        "runs again" if operator.recomputed else "",
    )


def _read(operators: Sequence[FlowOperator], read: TensorRead) -> str:
    if read.source is None:
        return "weights"
    if read.source < 0:
        return f"input {-read.source}"
    return operators[read.source].name


def _sent(read: TensorRead) -> str:
    if not (read.forward or read.backward):
        return ""
    of = "weights: " if read.source is None else ""
    return f"{of}{sent_text(read)}, {units.nbytes(read.nbytes)}"
