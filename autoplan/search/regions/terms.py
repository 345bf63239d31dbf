"""Amounts of a region as tables over few decisions.

Every amount of a column is a sum of such tables, one for each set of decisions (*scope*). A table
has one layer for each amount, so that prices turn all of them into one cost at once. Combinations
that nothing can convert between are blocked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from autoplan.search.elimination import Scope

Amounts = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

AMOUNTS = (
    "forward_s", "backward_input_s", "backward_weight_s", "kept_bytes", "recomputed_bytes",
    "working_bytes", "trained_elements", "frozen_elements", "forward_messages_s",
    "backward_messages_s",
)  # fmt: skip
"""The layers of a table; the last two have no price."""

PRICED = 8
"""How many layers have a price; they come first."""

LAYER = {name: number for number, name in enumerate(AMOUNTS)}


@dataclass(frozen=True, slots=True)
class Flag:
    """Something that is so for some choices of one decision."""

    number: int
    by_choice: tuple[bool, ...]

    @property
    def varies(self) -> bool:
        """Whether it depends on the choice."""
        return any(self.by_choice) and not all(self.by_choice)

    def over(self, scope: Scope) -> Mask:
        """As a table that fits others over ``scope``, which has the decision if it varies."""
        if self.varies:
            return along(self.number, scope, self.by_choice)
        return np.full((1,) * len(scope), self.by_choice[0])

    def at(self, choices: Sequence[int]) -> bool:
        """Whether it is so when these are taken."""
        return self.by_choice[choices[self.number]] if self.varies else self.by_choice[0]

    def both(self, other: Flag) -> Flag:
        """Where this and another one of the same decision are so."""
        pairs = zip(self.by_choice, other.by_choice, strict=True)
        return Flag(self.number, tuple(a and b for a, b in pairs))

    def either(self, other: Flag) -> Flag:
        """Where this or another one of the same decision is so."""
        pairs = zip(self.by_choice, other.by_choice, strict=True)
        return Flag(self.number, tuple(a or b for a, b in pairs))

    def inverse(self) -> Flag:
        """Where it is not so."""
        return Flag(self.number, tuple(not a for a in self.by_choice))


NEVER = Flag(-1, (False,))
ALWAYS = Flag(-1, (True,))


def along(number: int, scope: Scope, values: Sequence[float]) -> npt.NDArray[Any]:
    """Values of each choice of one decision, as they enter a table over ``scope``."""
    return np.array(values).reshape([-1 if other == number else 1 for other in scope])


def any_of(flags: Iterable[Flag], scope: Scope) -> Mask:
    """Where any of the flags is so."""
    found: Mask = np.zeros((1,) * len(scope), dtype=bool)
    for flag in flags:
        found = found | flag.over(scope)
    return found


def scope_of(flags: Iterable[Flag], *numbers: int) -> Scope:
    """The decisions that flags depend on, and others, in ascending order."""
    return tuple(sorted({flag.number for flag in flags if flag.varies} | set(numbers)))


@dataclass(slots=True)
class Terms:
    """Tables of one region, by scope.

    Attributes:
        sizes: number of choices of every decision.
        tables: layers first, then the decisions of the scope.
        blocked: combinations that cannot be.
    """

    sizes: tuple[int, ...]
    tables: dict[Scope, Amounts] = field(default_factory=dict)
    blocked: dict[Scope, Mask] = field(default_factory=dict)

    def add(self, scope: Scope, **amounts: npt.NDArray[Any]) -> None:
        """Adds to the layers that are named; values must broadcast over the scope."""
        if scope not in self.tables:
            shape = [self.sizes[number] for number in scope]
            self.tables[scope] = np.zeros((len(AMOUNTS), *shape))
        table = self.tables[scope]
        for name, values in amounts.items():
            table[LAYER[name]] += values

    def block(self, scope: Scope, where: Mask) -> None:
        """Marks combinations as impossible."""
        if where.any():
            self.add(scope)
            known = self.blocked.get(scope, np.zeros(self.tables[scope].shape[1:], dtype=bool))
            self.blocked[scope] = known | where

    def restricted(self, taken: Mapping[int, int]) -> Terms:
        """The same with some decisions taken: they go out of all scopes and have one choice.

        Tables that do not change are shared, so nothing may be added to either.
        """
        sizes = tuple(1 if number in taken else size for number, size in enumerate(self.sizes))
        found = Terms(sizes)
        for scope, whole in self.tables.items():
            table, blocked = whole, self.blocked.get(scope)
            rest = tuple(number for number in scope if number not in taken)
            if len(rest) < len(scope):
                at = tuple(taken.get(number, slice(None)) for number in scope)
                table = whole[(slice(None), *at)]
                blocked = None if blocked is None else np.asarray(blocked[at])
            known = found.tables.get(rest)
            found.tables[rest] = table if known is None else known + table
            if blocked is not None:
                found.blocked[rest] = blocked | found.blocked.get(rest, False)
        return found
