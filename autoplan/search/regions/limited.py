"""The least value of a region's ways whose bytes are limited, not priced.

Prices of bytes find ways on the lower hull of bytes and value alone. Blocks of a rank that all run
alike cannot be a mixture of two of them, and the best way that fits may lie above the hull. Two
amounts are left, value and bytes; what is never better in either is given up (``reduction``), and
the rest is searched by branch and bound (Land and Doig, Econometrica 28, 1960) with Lagrangian
bounds (Fisher, Management Science 27, 1981): at the price at which a way that fits and a better one
that does not are as good, a decision in which they differ is taken as in the one, or otherwise.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from autoplan.search.regions.program import Program
from autoplan.search.regions.reduction import Reduction, reduced
from autoplan.search.regions.terms import AMOUNTS, LAYER, PRICED, Terms

Floats = npt.NDArray[np.float64]
_Entries = npt.NDArray[np.intp]

_VALUE, _BYTES = LAYER["forward_s"], LAYER["kept_bytes"]
"""The layers that value and bytes take."""

_CLOSE = 2e-4
"""How far a bound may be below the best way."""

_MOST_SPLIT = 100
_MOST_PRICES = 12
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Point:
    """A way: its value, its bytes, and the choices of a mode."""

    value: float
    nbytes: float
    mode: int
    choices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Limited:
    """What was found.

    Attributes:
        bound: no way that fits has a lower value; inf where none fits.
        point: the best way that fits of those that were seen, if any.
    """

    bound: float
    point: Point | None


def least_limited(
    modes: Mapping[int, Terms], prices: Floats, weights: Floats, limit_bytes: float
) -> Limited:
    """The least value of all ways that fit, or nearly.

    Args:
        modes: tables of the amounts.
        prices: of each of ``AMOUNTS`` that has one.
        weights: bytes of one of each.
        limit_bytes: of all that has a weight.
    """
    pairs = {mode: _of_two(terms, prices, weights) for mode, terms in modes.items()}
    reductions = {mode: reduced(terms, (), thoroughly=True) for mode, terms in pairs.items()}
    return _Search(reductions, limit_bytes).run()


def _of_two(terms: Terms, prices: Floats, weights: Floats) -> Terms:
    """Tables of value and bytes alone."""
    mixed = np.zeros((len(AMOUNTS), PRICED))
    mixed[_VALUE], mixed[_BYTES] = prices, weights
    tables = {
        scope: np.tensordot(mixed, table[:PRICED], axes=1) for scope, table in terms.tables.items()
    }
    return Terms(terms.sizes, tables, terms.blocked)


@dataclass(frozen=True, slots=True)
class _Part:
    """Some ways of a mode, of which none takes certain entries of tables.

    ``under`` fits, ``over`` does not and has a lower value; at ``price`` they are as good, and no
    way of the part has a value below ``bound`` and fits.
    """

    bound: float
    mode: int
    barred: _Entries
    under: Point
    over: Point
    price: float


class _Search:
    def __init__(self, reductions: Mapping[int, Reduction], limit_bytes: float) -> None:
        self._reductions = reductions
        self._programs = {
            mode: Program(reduction.terms, "a region") for mode, reduction in reductions.items()
        }
        self._limit_bytes = limit_bytes
        self._best: Point | None = None

    def run(self) -> Limited:
        """Splits the part with the lowest bound, until that is close to the best way."""
        turns = itertools.count()
        waiting: list[tuple[float, int, _Part]] = []

        def keep(part: _Part | None) -> None:
            if part is not None:
                heapq.heappush(waiting, (part.bound, next(turns), part))

        for mode in self._programs:
            keep(self._relaxed(mode, np.zeros(0, dtype=np.intp), 0.0))
        for _ in range(_MOST_SPLIT):
            if not waiting or waiting[0][0] >= self._enough:
                break
            part = heapq.heappop(waiting)[2]
            for barred in self._split(part):
                keep(self._relaxed(part.mode, np.append(part.barred, barred), part.price))
        left = min((bound for bound, _, _ in waiting), default=math.inf)
        return Limited(min(left, self._enough), self._completed())

    @property
    def _enough(self) -> float:
        """What no bound need be more than."""
        return self._best.value * (1 - _CLOSE) if self._best else math.inf

    def _completed(self) -> Point | None:
        best = self._best
        return best and replace(best, choices=self._reductions[best.mode].complete(best.choices))

    def _relaxed(self, mode: int, barred: _Entries, price: float) -> _Part | None:
        """A part with its highest bound at any price, tried from a likely one on.

        None where it has no way that fits and is better than the best, which may be its own.
        """
        bound, line, sides = -math.inf, math.inf, dict[bool, Point]()
        for _ in range(_MOST_PRICES):
            value, point = self._least(mode, barred, price)
            if point is None:
                return None
            fits = point.nbytes <= self._limit_bytes
            if (price == 0 and fits) or (price == math.inf and not fits):
                return None
            if price < math.inf:
                bound = max(bound, value - price * self._limit_bytes)
            if bound >= self._enough:
                return None
            if value >= line - _ROUNDING * abs(line):
                break
            sides[fits] = point
            if len(sides) == 1:
                price = 0.0 if fits else math.inf
                continue
            under, over = sides[True], sides[False]
            if under.value <= over.value:
                return None
            price = (under.value - over.value) / (over.nbytes - under.nbytes)
            line = over.value + price * over.nbytes
        return _Part(bound, mode, barred, sides[True], sides[False], price)

    def _least(self, mode: int, barred: _Entries, price: float) -> tuple[float, Point | None]:
        """The least value with bytes at a price, or at an infinite one the fewest bytes, and the
        way; it is kept if it is the best that fits."""
        program, prices = self._programs[mode], np.zeros(PRICED)
        prices[_VALUE], prices[_BYTES] = (1.0, price) if price < math.inf else (0.0, 1.0)
        value = program.least(prices, barred)
        if value == math.inf:
            return value, None
        choices = program.choices()
        amounts = program.amounts(choices)
        point = Point(float(amounts[_VALUE]), float(amounts[_BYTES]), mode, choices)
        is_better = self._best is None or point.value < self._best.value
        if point.nbytes <= self._limit_bytes and is_better:
            self._best = point
        return value, point

    def _split(self, part: _Part) -> Iterator[_Entries]:
        """Entries that are barred where a decision is taken as in the better way, and otherwise."""
        pairs = enumerate(zip(part.under.choices, part.over.choices, strict=True))
        differing = [number for number, pair in pairs if pair[0] != pair[1]]
        number = max(differing, key=lambda number: self._changed_bytes(part, number))
        taken = part.over.choices[number]
        entries = self._programs[part.mode].entries_of(number)
        yield np.delete(entries, taken, axis=0).ravel()
        yield entries[taken]

    def _changed_bytes(self, part: _Part, number: int) -> float:
        """By how much a decision of the one way changes the bytes of the other; the most where the
        other cannot have it alone."""
        choices = list(part.over.choices)
        choices[number] = part.under.choices[number]
        amounts = self._programs[part.mode].amounts(choices)
        return abs(float(amounts[_BYTES]) - part.over.nbytes)
