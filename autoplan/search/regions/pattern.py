"""The tables of a region as sums of figures, which are alike at all microbatches.

Whatever depends on choices alone (which decisions a table is over, which figures its entries are
sums of) is found once (``patterns``). The tables of a microbatch are then one sum over all entries
that are not zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from autoplan.search.elimination import Scope
from autoplan.search.operator_costs import MicrobatchCosts
from autoplan.search.regions.figures import NOTHING, Figures, Slots
from autoplan.search.regions.terms import AMOUNTS, LAYER, Mask, Terms
from autoplan.search.regions.ways import Ways

_Floats = npt.NDArray[np.float64]


class TooLargeError(Exception):
    """A table has more entries than are looked at."""


class Pattern:
    """Collects what the amounts of a region's combinations are sums of.

    Args:
        sizes: number of choices of every decision.
        most_entries: of a table, if there is a limit.

    Raises:
        TooLargeError: when a table of more entries is added to.
    """

    def __init__(self, sizes: Sequence[int], most_entries: int | None = None) -> None:
        self.figures = Figures()
        self._sizes = tuple(sizes)
        self._most_entries = most_entries
        self._begins: dict[Scope, int] = {}
        self._entries = 0
        self._blocked: dict[Scope, Mask] = {}
        self._parts: list[tuple[Slots, Slots, _Floats]] = []

    def add(
        self, scope: Scope, slots: Slots | int, times: npt.NDArray[Any] | float, *amounts: str
    ) -> None:
        """Adds figures, each so many times, to amounts; both broadcast over the scope."""
        shape = [self._sizes[number] for number in scope]
        flat = np.broadcast_to(slots, shape).reshape(-1)
        factors = np.broadcast_to(times, shape).reshape(-1)
        at = np.flatnonzero((flat != NOTHING) & (factors != 0))
        if not len(at):
            return
        begin = self._begin(scope)
        for name in amounts:
            entries = begin + LAYER[name] * math.prod(shape) + at
            self._parts.append((entries, flat[at], factors[at].astype(float)))

    def check(self, scope: Scope) -> None:
        """Refuses a scope that is too large, before what is added to it is made."""
        if self._most_entries is None:
            return
        if math.prod(self._sizes[number] for number in scope) > self._most_entries:
            raise TooLargeError

    def block(self, scope: Scope, where: Mask) -> None:
        """Marks combinations as impossible."""
        if where.any():
            self._begin(scope)
            shape = [self._sizes[number] for number in scope]
            known = self._blocked.get(scope, np.zeros(shape, dtype=bool))
            self._blocked[scope] = known | where

    def terms(self, ways: Ways, costs: MicrobatchCosts) -> Terms:
        """The tables for the microbatch of these ways and costs."""
        entries, slots, factors = self._flat
        values = self.figures.found(ways, costs)
        sums = np.bincount(entries, factors * values[slots], self._entries)
        found = sums.astype(np.float64, copy=False)
        terms = Terms(self._sizes, blocked=dict(self._blocked))
        for scope, begin in self._begins.items():
            shape = len(AMOUNTS), *(self._sizes[number] for number in scope)
            terms.tables[scope] = found[begin : begin + math.prod(shape)].reshape(shape)
        return terms

    @cached_property
    def _flat(self) -> tuple[Slots, Slots, _Floats]:
        """Entries of all tables, one behind the other, figures and factors; not to be added to."""
        if not self._parts:
            return np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.intp), np.zeros(0)
        entries, slots, factors = zip(*self._parts, strict=True)
        self._parts.clear()
        return np.concatenate(entries), np.concatenate(slots), np.concatenate(factors)

    def _begin(self, scope: Scope) -> int:
        """Where the tables of a scope begin."""
        if scope not in self._begins:
            self.check(scope)
            self._begins[scope] = self._entries
            self._entries += len(AMOUNTS) * math.prod(self._sizes[number] for number in scope)
        return self._begins[scope]
