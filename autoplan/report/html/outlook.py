"""Other sizes of the same training: the scaling curve, and the largest that fit."""

from __future__ import annotations

import math
from collections.abc import Iterator

from autoplan.plan import Plan
from autoplan.plan_details import Outlook, ScalingPoint
from autoplan.plurals import counted
from autoplan.report import units
from autoplan.report.html.markup import WIDTH, Markup, element, picture, section, stretched, table
from autoplan.report.html.placements import definitions
from autoplan.report.scaling import COLUMNS, limit_rows, scaling_notes, scaling_rows

_HEIGHT, _TOP, _FOOT = 120, 20, 24
_MARGIN = 0.07
_DOT = 4


def outlook(plan: Plan) -> Markup | None:
    """The section on other sizes, if some were asked for."""
    found = plan.outlook
    if found is None:
        return None
    parts = []
    planned = [point for point in found.scaling if point.samples_per_s is not None]
    if len(planned) > 1:
        parts.append(element("figure", _curve(found, planned)))
    if found.scaling:
        caption = "The same training on other nodes; each row is a plan"
        parts.append(table(caption, COLUMNS, scaling_rows(found), numbers=range(1, len(COLUMNS))))
        parts.append(element("p", " ".join(scaling_notes(found)), class_="note"))
    limits = limit_rows(plan, found)
    if limits:
        parts += [element("h3", "Largest that fits"), definitions(limits)]
    return section("Other sizes", *parts, id_="outlook")


def _curve(found: Outlook, planned: list[ScalingPoint]) -> Markup:
    """Scaling over the logarithm of the nodes; the full height is the best, at least 1."""
    shares = [found.scaling_of(point) or 0.0 for point in planned]
    best = max(1.0, *shares)
    places = _places([point.nodes for point in planned])
    heights = [_TOP + _HEIGHT * (1 - share / best) for share in shares]
    line = "L".join(
        f"{WIDTH * place:.0f} {height:.1f}" for place, height in zip(places, heights, strict=True)
    )
    ideal = _TOP + _HEIGHT * (1 - 1 / best)
    shapes = [
        element("line", class_="tick", x1=0, x2="100%", y1=f"{ideal:g}", y2=f"{ideal:g}"),
        element("line", class_="tick", x1=0, x2="100%", y1=_TOP + _HEIGHT, y2=_TOP + _HEIGHT),
        stretched([element("path", class_="curve", d=f"M{line}")], height=_TOP + _HEIGHT),
        *_marks(planned, shares, places, heights),
    ]
    told = ", ".join(
        f"{counted(point.nodes, 'node')} {units.percent(share)}"
        for point, share in zip(planned, shares, strict=True)
    )
    return picture("Scaling over nodes", told, *shapes, height=_TOP + _HEIGHT + _FOOT)


def _places(nodes: list[int]) -> list[float]:
    """Along x, from 0 to 1."""
    logs = [math.log(count) for count in nodes]
    first, span = logs[0], (logs[-1] - logs[0]) or 1.0
    return [_MARGIN + (1 - 2 * _MARGIN) * (log - first) / span for log in logs]


def _marks(
    planned: list[ScalingPoint], shares: list[float], places: list[float], heights: list[float]
) -> Iterator[Markup]:
    for point, share, place, height in zip(planned, shares, places, heights, strict=True):
        at = f"{100 * place:.4g}%"
        yield element("circle", class_="dot", cx=at, cy=f"{height:.1f}", r=_DOT)
        yield element(
            "text", units.percent(share), x=at, y=f"{height - 8:.1f}", text_anchor="middle"
        )
        yield element(
            "text", counted(point.nodes, "node"), class_="axis", x=at,
            y=_TOP + _HEIGHT + 17, text_anchor="middle",
        )  # fmt: skip
