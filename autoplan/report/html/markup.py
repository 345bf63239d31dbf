"""HTML from Python values: whatever is not markup already is escaped.

Names of models, layers and clusters come from plan files, which anyone may have written; only
``Markup`` that was built here stands in a page as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

WIDTH, BAR = 10_000, 20
_VOID = ("meta", "br", "rect", "line", "stop", "path", "circle")


class Markup(str):
    """Text that is HTML."""

    __slots__ = ()


def element(name: str, /, *children: object, **attributes: object) -> Markup:
    """One element.

    Args:
        children: markup as it is, anything else as text; None is left out.
        attributes: ``_`` in names stands for ``-``, but for one at the end (``class_``); those that
            are None are left out.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def join(*parts: object) -> Markup:
    """Parts one behind the other; markup as it is, anything else as text."""
    return Markup(
        "".join(
            part if isinstance(part, Markup) else escape(str(part))
            for part in parts
            if part is not None
        )
    )


def table(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Sequence[int] = (),
    wraps: Sequence[int] = (),
) -> Markup:
    """A table whose first column names the rows; it scrolls sideways where it is too wide.

    Args:
        numbers: columns that stand to the right.
        wraps: columns of names that may break anywhere.
    """

    def of_column(index: int) -> str | None:
        return "n" if index in numbers else "w" if index in wraps else None

    head = [
        element("th", name, scope="col", class_=of_column(index))
        for index, name in enumerate(columns)
    ]
    body = []
    for first, *rest in rows:
        cells = [element("th", first, scope="row", class_=of_column(0))]
        cells += [
            element("td", value, class_=of_column(index)) for index, value in enumerate(rest, 1)
        ]
        body.append(element("tr", *cells))
    found = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *head)),
        element("tbody", *body),
    )
    return element("div", found, class_="scroll", tabindex=0, role="region", aria_label=caption)


def section(title: str, *children: object, id_: str) -> Markup:
    """A section with its heading."""
    heading = element("h2", title, id=id_)
    return element("section", heading, *children, aria_labelledby=id_)


def picture(title: str, description: str, *shapes: object, height: float) -> Markup:
    """A drawing as wide as the page, ``height`` pixels high; x goes in percent."""
    return element(
        "svg",
        element("title", title),
        element("desc", description),
        *shapes,
        role="img",
        width="100%",
        height=f"{height:g}",
    )


def stretched(shapes: Iterable[Markup], *, height: float, y: float = 0) -> Markup:
    """Part of a picture whose x goes from 0 to ``WIDTH``, whatever the width of the page."""
    return element(
        "svg",
        *shapes,
        y=f"{y:g}",
        width="100%",
        height=f"{height:g}",
        viewBox=f"0 0 {WIDTH} {height:g}",
        preserveAspectRatio="none",
    )


def stacked(
    name: str,
    parts: Sequence[tuple[str, str, float]],
    full: float,
    shown: Callable[[float], str],
    *,
    limit: float | None = None,
) -> Markup:
    """One bar of parts (colour, name, value) behind one another, and a line at a limit."""
    shapes, start = [element("rect", class_="track", width="100%", height=BAR)], 0.0
    for colour, _, value in parts:
        at, width = percent_of(start, full), percent_of(value, full)
        shapes.append(element("rect", class_=colour, x=at, width=width, height=BAR))
        start += value
    if limit is not None:
        at = percent_of(limit, full)
        shapes.append(element("line", class_="limit", x1=at, x2=at, y1=0, y2=BAR))
    description = ", ".join(f"{part} {shown(value)}" for _, part, value in parts)
    return picture(name, description, *shapes, height=BAR)


def percent_of(value: float, whole: float) -> str:
    """A length or place along x."""
    return f"{100 * value / whole if whole else 0:.5g}%"


def key(colour: str) -> Markup:
    """A small square of a colour (class of the style)."""
    return element("span", class_=f"key {colour}", aria_hidden="true")


def legend(entries: Iterable[tuple[str, str]]) -> Markup:
    """What colours (classes of the style) stand for."""
    items = [element("li", key(colour), name) for colour, name in entries]
    return element("ul", *items, class_="legend")
