"""What verifying a plan showed: how far its program is from the model on one device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """How far one tensor is from that of one device, on the rank where it is farthest.

    Attributes:
        kind: ``loss``, ``gradient``, ``norm``, ``buffer``, or the optimizer after whose step it
            was compared.
        name: of the parameter or buffer; empty for the loss and the norm.
        largest: the largest absolute difference of an element; infinite for NaN, and for what no
            rank holds.
        allowed: what rounding explains.
        reader: the first operator that reads the parameter; empty where it is not known.
    """

    kind: str
    name: str
    largest: float
    allowed: float
    reader: str = ""

    @property
    def ok(self) -> bool:
        return self.largest <= self.allowed


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """The outcome.

    Attributes:
        ranks: processes that ran the program.
        precision: in which it was compared: ``float64`` or ``float32``.
        cuts: what was made smaller to fit this machine: "layers 32 -> 4".
        differences: all that was compared, in the order of a step.
        orders: what the check of the order of messages looked at.
        fault: why the program did not run to its end, if it did not.
    """

    ranks: int
    precision: str
    differences: tuple[Difference, ...]
    cuts: tuple[str, ...] = ()
    orders: str = ""
    fault: str | None = None

    @property
    def ok(self) -> bool:
        return self.fault is None and all(difference.ok for difference in self.differences)

    @property
    def suspect(self) -> Difference | None:
        """The wrong gradient that the backward came to first: the fault lies there or ahead."""
        wrong = [d for d in self.differences if d.kind == "gradient" and not d.ok]
        return wrong[-1] if wrong else None
