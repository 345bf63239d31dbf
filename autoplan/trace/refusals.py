"""How a model that autoplan cannot take is reported: what, where, and what to do.

Whatever is refused is told to a ``Refuse``. The one that plans are made with raises at the first;
a survey of the model (``autoplan.diagnosis``) notes each and goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import fx

from autoplan.errors import UnsupportedModelError
from autoplan.trace.source_lines import line_here, line_of_stack

RefusalKind = Literal[
    "BatchNorm",
    "autocast",
    "buffer mutation",
    "custom autograd",
    "data-dependent branch",
    "data-dependent size",
    "data-dependent value",
    "gradient hook",
    "graph break",
    "in-place operator",
    "not traceable",
    "parameter mutation",
    "randomness",
    "state",
]
"""What a model is refused for, in a word."""


class RefusalError(UnsupportedModelError):
    """The error in one line, and its parts.

    Attributes:
        what: what the model does.
        where: the user's ``file:line``, '' when unknown.
        cure: what to do about it.
        kind: which of the things it is that cannot be traced.
    """

    def __init__(
        self, what: str, where: str, cure: str, kind: RefusalKind = "not traceable"
    ) -> None:
        super().__init__(f"{what}{f' (at {where})' if where else ''}; {cure}")
        self.what, self.where, self.cure = what, where, cure
        self.kind: RefusalKind = kind


Refuse = Callable[[RefusalError], None]


def refuse_at_once(refusal: RefusalError) -> None:
    """Raises it."""
    raise refusal


def where_of(node: fx.Node) -> str:
    """The user's ``file:line`` of a node, '' when unknown."""
    return line_of_stack(node.meta.get("stack_trace") or "")


def refused(
    node: fx.Node, what: str, cure: str, kind: RefusalKind = "not traceable"
) -> RefusalError:
    """The error for a node."""
    return RefusalError(what, where_of(node), cure, kind)


def refused_here(what: str, cure: str, kind: RefusalKind = "not traceable") -> RefusalError:
    """The error for what the forward does just now."""
    return RefusalError(what, line_here(), cure, kind)
