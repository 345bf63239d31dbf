"""The items of a model, as the search of one configuration sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoplan.search.pipeline.item_prices import Elements
from autoplan.search.pipeline.tied import Tied
from autoplan.search.regions.column import Menu


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """The items of a model for one configuration.

    Attributes:
        keys: region of each item.
        menus: of each region.
        elements: of each region.
        tied: parameters that several parts of the root read.
        modes: where blocks run all again or nothing, menus of the one and of the other, and of all
            else: those that run nothing again first.
    """

    keys: tuple[str, ...]
    menus: Mapping[str, Menu]
    elements: Mapping[str, Elements]
    tied: tuple[Tied, ...] = ()
    modes: tuple[Mapping[str, Menu], ...] = ()
