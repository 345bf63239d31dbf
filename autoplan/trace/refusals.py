"""How a node that autoplan cannot take is reported: what, where, and what to do."""

from __future__ import annotations

from torch import fx

from autoplan.errors import UnsupportedModelError
from autoplan.trace.source_lines import line_of_stack


def where_of(node: fx.Node) -> str:
    """The user's ``file:line`` of a node, '' when unknown."""
    return line_of_stack(node.meta.get("stack_trace") or "")


def refused(node: fx.Node, what: str, cure: str) -> UnsupportedModelError:
    """The error for a node, in one line."""
    where = where_of(node)
    return UnsupportedModelError(f"{what}{f' (at {where})' if where else ''}; {cure}")
