"""What a family of menus offers, with menus that are lists: all ways of small rows of items."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from autoplan.search.pipeline.item_prices import Elements
from autoplan.search.pipeline.whole import Apart
from autoplan.search.regions.column import Column, Least, Prices, Within, value_of
from autoplan.search.regions.menus import Crossing

CROSSING = "crossing"


@dataclass(frozen=True, slots=True)
class ListedMenu:
    """All columns of a region, one by one."""

    columns: tuple[Column, ...]

    def least_operator_bytes(self) -> float:
        return min(column.operator_bytes for column in self.columns)

    def least(self, prices: Prices) -> Least:
        best = min(self.columns, key=lambda column: value_of(column, prices))
        return Least(value_of(best, prices), best)

    def within(self, prices: Prices, weights: Prices, limit_bytes: float) -> Within:
        fitting = [column for column in self.columns if value_of(column, weights) <= limit_bytes]
        best = min(fitting, key=lambda column: value_of(column, prices), default=None)
        return Within(math.inf if best is None else value_of(best, prices), best)

    def least_values(self, prices: Sequence[Prices]) -> npt.NDArray[np.float64]:
        return np.array([self.least(at).value for at in prices])


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One placement of what crosses between items: columns, crossing bytes, shared parameters."""

    columns: Mapping[str, tuple[Column, ...]]
    cuts: tuple[Crossing, ...]
    tied: tuple[tuple[tuple[int, ...], float], ...]
    apart: tuple[Apart, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ListedFamily:
    """What ``Family`` offers, with menus that are lists."""

    keys: tuple[str, ...]
    is_block: tuple[bool, ...]
    elements: Mapping[str, Elements]
    ways: tuple[Way, ...]
    shared_s: float

    @cached_property
    def counts(self) -> Mapping[str, int]:
        return Counter(self.keys)

    @cached_property
    def free(self) -> Mapping[str, ListedMenu]:
        return {
            key: ListedMenu(tuple(column for way in self.ways for column in way.columns[key]))
            for key in self.counts
        }

    @cached_property
    def modes(self) -> tuple[Mapping[str, ListedMenu], ...]:
        """Columns of blocks that run nothing again, and those that do, where all have both."""
        blocks = {key for key, block in zip(self.keys, self.is_block, strict=True) if block}
        found = tuple(
            {
                key: ListedMenu(
                    tuple(
                        column
                        for column in menu.columns
                        if key not in blocks or bool(column.recomputed_bytes) == again
                    )
                )
                for key, menu in self.free.items()
            }
            for again in (False, True)
        )
        return found if all(menu.columns for menus in found for menu in menus.values()) else ()

    def fixed(self, boundary: Mapping[str, int]) -> Mapping[str, ListedMenu]:
        way = self.ways[boundary[CROSSING]]
        return {key: ListedMenu(way.columns[key]) for key in self.counts}

    def tied(self, boundary: Mapping[str, int]) -> tuple[tuple[tuple[int, ...], float], ...]:
        return self.ways[boundary[CROSSING]].tied

    def apart(self, boundary: Mapping[str, int]) -> tuple[Apart, ...]:
        return self.ways[boundary[CROSSING]].apart

    @property
    def least_apart(self) -> tuple[Apart, ...]:
        return min((way.apart for way in self.ways), key=_apart_elements)

    def crossings(self, boundary: Mapping[str, int]) -> tuple[Crossing, ...]:
        return self.ways[boundary[CROSSING]].cuts

    @property
    def least_crossings(self) -> tuple[Crossing, ...]:
        return tuple(
            Crossing(
                forward_bytes=min(cut.forward_bytes for cut in cuts),
                backward_bytes=min(cut.backward_bytes for cut in cuts),
            )
            for cuts in zip(*(way.cuts for way in self.ways), strict=True)
        )

    @property
    def most_tied(self) -> tuple[tuple[tuple[int, ...], float], ...]:
        return max((way.tied for way in self.ways), key=lambda tied: [one[1] for one in tied])

    def boundary(self, prices: Prices) -> Mapping[str, int]:
        values = [
            sum(
                count * ListedMenu(way.columns[key]).least(prices).value
                for key, count in self.counts.items()
            )
            for way in self.ways
        ]
        return {CROSSING: values.index(min(values))}

    @property
    def menus(self) -> Any:
        """What is read of the menus of a real family."""
        tied = [way.tied for way in self.ways]
        return SimpleNamespace(
            stack=SimpleNamespace(
                items=tuple(
                    SimpleNamespace(kind="kind" if block else "") for block in self.is_block
                )
            ),
            boundaries=(SimpleNamespace(name=CROSSING, placements=tuple(range(len(self.ways)))),),
            shared_parameters=tuple(
                SimpleNamespace(
                    name=CROSSING,
                    items=items,
                    trainable=True,
                    placements=tuple(range(len(self.ways))),
                    elements=tuple(way[at][1] for way in tied),
                )
                for at, (items, _) in enumerate(tied[0])
            ),
            apart=frozenset(),
            keys=self.keys,
            fixed=lambda key, given: self.fixed(given)[key],
            shared_s=self.shared_s,
            crossing_bytes=self.crossings,
        )


def _apart_elements(apart: tuple[Apart, ...]) -> float:
    return sum(one.unit.trained_elements + one.unit.frozen_elements for one in apart)
