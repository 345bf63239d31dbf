"""Parameters that several parts of the root read: where one rank has them all, they count once.

Free menus store such a parameter for every reader as suits that reader best. With one stage, the
plan has all readers, and one placement w of the parameter; so of all placements

    min over w of (sum over readers of the least value with w - what they count too often with w)

bounds the readers' part of the plan, and is never below what free menus leave if as much is taken
off as the placement with the most elements would allow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autoplan.search.regions.column import Menu, Prices
from autoplan.search.regions.menus import RegionMenus


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """One placement of a parameter: its elements on a rank, and the menus of its readers."""

    elements: float
    menus: Mapping[str, Menu]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tied:
    """A trained parameter with several readers in the root, by item."""

    items: tuple[int, ...]
    placed: tuple[Placed, ...]

    def twice(
        self, keys: Sequence[str], free: Mapping[str, Menu], prices: Mapping[str, Prices]
    ) -> float:
        """How much less than the sum of the readers' least values all of them are worth at most.

        Args:
            keys: region of each item.
            free: menus of regions, whatever the placement.
            prices: of the readers' regions.
        """
        readers = [keys[item] for item in self.items]
        return max(self._twice(placed, readers, free, prices) for placed in self.placed)

    def _twice(
        self,
        placed: Placed,
        readers: Sequence[str],
        free: Mapping[str, Menu],
        prices: Mapping[str, Prices],
    ) -> float:
        dearer = sum(
            menus[key].least_values([prices[key]])[0] * sign
            for menus, sign in ((placed.menus, 1.0), (free, -1.0))
            for key in readers
        )
        beyond_one = (len(readers) - 1) * placed.elements
        return float(beyond_one * prices[readers[0]].trained_elements - dearer)


def tied_of(menus: RegionMenus) -> tuple[Tied, ...]:
    """All such parameters of a model that do not share a reader with one before them."""
    return tuple(_tied(menus))


def _tied(menus: RegionMenus) -> Iterator[Tied]:
    met: set[int] = set()
    for one in menus.shared_parameters:
        if not one.trainable or one.name in menus.apart or met.intersection(one.items):
            continue
        met.update(one.items)
        keys = {menus.keys[item] for item in one.items}
        yield Tied(
            items=one.items,
            placed=tuple(
                Placed(
                    elements=elements,
                    menus={key: menus.fixed(key, {one.name: placement}) for key in keys},
                )
                for placement, elements in zip(one.placements, one.elements, strict=True)
            ),
        )
