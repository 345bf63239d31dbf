"""Rules of operators that users brought: the one place of the process where they are kept.

An operator of ``torch.library`` is there for the whole process, and its rule beside it. Only
``autoplan.custom_ops`` adds rules, once it has seen them hold.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.errors import UnsupportedModelError
from autoplan.sharding.equation import Equation, equation
from autoplan.sharding.rules.base import Call


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenRule:
    """An equation as a user writes it, with the letters that no rank may split."""

    text: str
    whole: str = ""

    def __call__(self, call: Call) -> Equation:
        """The equation of a call.

        Raises:
            UnsupportedModelError: it does not describe tensors of these shapes.
        """
        try:
            return equation(self.text, call.shapes, call.output_shapes, whole=self.whole)
        except (AssertionError, KeyError, ValueError) as error:
            shapes = ", ".join(map(str, call.shapes))
            results = ", ".join(map(str, call.output_shapes))
            where = f" (at {call.node.where})" if call.node.where else ""
            raise UnsupportedModelError(
                f"the rule {self.text!r} of {call.node.target} does not describe a call on "
                f"{shapes} that gives {results}{where}; correct the equation, with ... for any "
                "number of leading dims"
            ) from error


_RULES: dict[str, WrittenRule] = {}


def registered(target: str) -> WrittenRule | None:
    """The rule of an operator, ``mylib.op.default``."""
    return _RULES.get(target)


def keep(target: str, rule: WrittenRule) -> None:
    """Adds a rule.

    Raises:
        UnsupportedModelError: the operator has another one.
    """
    if _RULES.setdefault(target, rule) != rule:
        raise UnsupportedModelError(
            f"{target} has the rule {_RULES[target].text!r} already; register it once"
        )
