"""A way to run one region, in figures, and prices at which the best way can be asked for.

A region is one block of a kind, or a part of what is outside blocks. All ways of running it are one
optimisation over placements and recomputed operators; the rest of the planner knows it as a *menu*
that answers prices with columns. Every amount is non-negative and adds up over the regions of a
stage, but for passing bytes, of which the largest counts.

With the prices p >= 0 of all amounts, the *value* of a column is the sum of price times amount. A
menu gives the least value over all columns, so that for any column c and any prices,
``menu.least(p).value <= value_of(c, p)``: this is what lower bounds are made of. The least value is
concave in p: between prices that were asked, interpolation bounds it from below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One way to run a region: what one rank spends on one microbatch, and what it stores.

    Attributes:
        choices: number of the choice taken by each decision of the menu.
        forward_s: operators and messages of the forward.
        backward_input_s: gradients of activations, with what is recomputed before them.
        backward_weight_s: gradients of parameters.
        kept_bytes: activations kept from a microbatch's forward until its backward, with what
            enters the region.
        recomputed_bytes: activations that the backward makes again; they pass.
        operator_bytes: what the largest operator holds beside them; passes.
        working_bytes: of a part of the root, what the larger of two of its operators holds: the one
            that can hold most, and the one that does at least. Unlike ``operator_bytes``, it has a
            price.
        trained_elements, frozen_elements: parameters, before any split over data-parallel ranks.
        forward_messages_s, backward_messages_s: of the seconds above, messages over ``tp``
            and ``cp``.
    """

    choices: tuple[int, ...]
    forward_s: float
    backward_input_s: float
    backward_weight_s: float
    kept_bytes: float
    recomputed_bytes: float
    operator_bytes: float
    trained_elements: float
    frozen_elements: float
    forward_messages_s: float = 0.0
    backward_messages_s: float = 0.0
    working_bytes: float = 0.0

    @property
    def passing_bytes(self) -> float:
        """What the region makes again is all there when its last operators go backward."""
        return self.recomputed_bytes + self.operator_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Prices:
    """What a unit of each amount of a column costs; none is negative."""

    forward_s: float
    backward_input_s: float
    backward_weight_s: float
    kept_bytes: float = 0.0
    recomputed_bytes: float = 0.0
    working_bytes: float = 0.0
    trained_elements: float = 0.0
    frozen_elements: float = 0.0

    @property
    def is_of_memory(self) -> bool:
        """Whether only what is held from a forward to its backward, and parameters, have one."""
        seconds = self.forward_s, self.backward_input_s, self.backward_weight_s
        return not any((*seconds, self.recomputed_bytes, self.working_bytes))


@dataclass(frozen=True, slots=True)
class Least:
    """The answer of a menu: the least value at some prices, and a column that has it."""

    value: float
    column: Column


@dataclass(frozen=True, slots=True)
class Within:
    """The answer of a menu to a limit of bytes.

    Attributes:
        bound: no column that fits has a lower value; inf where none does.
        column: one that fits, with a value close to it; None where none was found.
    """

    bound: float
    column: Column | None


class Menu(Protocol):
    """All ways to run a region."""

    def least_operator_bytes(self) -> float:
        """No column's ``operator_bytes`` are less."""
        ...

    def least(self, prices: Prices) -> Least:
        """The best way at some prices; always the same for the same prices."""
        ...

    def least_values(self, prices: Sequence[Prices]) -> npt.NDArray[np.float64]:
        """The values of ``least`` at several prices, but for rounding; shape (prices,)."""
        ...

    def within(self, prices: Prices, weights: Prices, limit_bytes: float) -> Within:
        """The least value of columns whose bytes (the value at ``weights``) are within a limit."""
        ...


def value_of(column: Column, prices: Prices) -> float:
    """What a column costs at some prices."""
    return (
        prices.forward_s * column.forward_s
        + prices.backward_input_s * column.backward_input_s
        + prices.backward_weight_s * column.backward_weight_s
        + prices.kept_bytes * column.kept_bytes
        + prices.recomputed_bytes * column.recomputed_bytes
        + prices.working_bytes * column.working_bytes
        + prices.trained_elements * column.trained_elements
        + prices.frozen_elements * column.frozen_elements
    )
