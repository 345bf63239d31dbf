"""What looking a model over before planning found, by place in the user's code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Effect = Literal["stops", "limits", "costs"]
"""No plan, fewer plans, or every plan but with something to know or to pay."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A line of source: ``file:line`` and its text, which may be unknown."""

    where: str
    text: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing to know.

    Attributes:
        kind: which of the questions it answers: "custom autograd", "indivisible dim".
        effect: how grave it is.
        what: what the model does, or has.
        cost: what follows for the training.
        cure: what to do about it.
        places: where, in order; empty where the model has it by its structure.
    """

    kind: str
    effect: Effect
    what: str
    cost: str
    cure: str
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """All that was found, the gravest first.

    Attributes:
        model: its name.
        operators: calls that were looked at; None where the model could not be traced.
    """

    model: str
    operators: int | None
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings
