"""What configurations of one ``tp`` degree and microbatch share: menus and boundary placements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from autoplan.search.pipeline.item_prices import Elements
from autoplan.search.pipeline.loads import Unit
from autoplan.search.pipeline.whole import Apart
from autoplan.search.pricing import Pricing
from autoplan.search.regions.column import Menu, Prices
from autoplan.search.regions.menus import (
    WHOLE_MODES,
    Crossing,
    Recompute,
    RegionMenus,
    SharedParameter,
    region_menus,
)
from autoplan.sharding.placement import Placement
from autoplan.trace.stack import Stack

Boundary = Mapping[str, Placement]
"""Placements of what crosses between items and of parameters that several read, by name."""

_ROUNDING = 1e-9
"""Of values: what is better by less is as good."""

ALL_SECONDS = Prices(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)


@dataclass(frozen=True, kw_only=True)
class Family:
    """Menus of one degree, microbatch and way of recomputing."""

    tp: int
    recompute: Recompute
    menus: RegionMenus
    _boundaries: dict[Prices, Boundary] = field(default_factory=dict)
    _crossings: dict[tuple[Placement, ...], tuple[Crossing, ...]] = field(default_factory=dict)

    @property
    def keys(self) -> tuple[str, ...]:
        """The region of each item."""
        return self.menus.keys

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """Items of each region."""
        return Counter(self.keys)

    @cached_property
    def free(self) -> Mapping[str, Menu]:
        """Menus whose boundaries are free: for bounds."""
        return {key: self.menus.free(key) for key in self.counts}

    @cached_property
    def modes(self) -> tuple[Mapping[str, Menu], ...]:
        """Where blocks run nothing or all again, and no single calls, menus of the one and the
        other; parts of the root, which run nothing again, have the same in both."""
        blocks = dict.fromkeys(
            key for key, item in zip(self.keys, self.menus.stack.items, strict=True) if item.kind
        )
        if not all(self.menus.runs_whole(key) for key in blocks):
            return ()
        nothing, again = (
            {key: self.menus.in_mode(key, mode) for key in blocks} for mode in WHOLE_MODES
        )
        return {**self.free, **nothing}, {**self.free, **again}

    def fixed(self, boundary: Boundary) -> Mapping[str, Menu]:
        """Menus of items that meet in given placements: for plans."""
        return {key: self.menus.fixed(key, boundary) for key in self.counts}

    @cached_property
    def elements(self) -> Mapping[str, Elements]:
        """Parameters of each region."""
        stack, found, apart = self.menus.stack, {}, self.menus.apart
        rows = list(zip(self.keys, stack.items, stack.parameters, strict=True))
        of_root = {name for _, item, names in rows if not item.kind for name in names}
        root = self._counted(of_root | apart)
        for key, item, names in rows:
            if key not in found:
                trained, frozen = own = self._counted(set(names) - apart)
                unit_trained, unit_frozen = own if item.kind else root
                found[key] = Elements(
                    trained=trained,
                    frozen=frozen,
                    least_trained=trained / self.tp,
                    least_frozen=frozen / self.tp,
                    unit_trained=unit_trained,
                    unit_frozen=unit_frozen,
                )
        return found

    def _counted(self, names: Iterable[str]) -> tuple[int, int]:
        """Elements of parameters, those that are trained and those that are frozen."""
        by_name = self.menus.stack.graph.by_name
        metas = [by_name[name].outputs[0] for name in names]
        trained = sum(meta.numel for meta in metas if meta.requires_grad)
        return trained, sum(meta.numel for meta in metas) - trained

    def crossings(self, boundary: Boundary) -> tuple[Crossing, ...]:
        """What crosses each cut."""
        key = tuple(boundary.values())
        if key not in self._crossings:
            self._crossings[key] = self.menus.crossing_bytes(boundary)
        return self._crossings[key]

    @cached_property
    def least_crossings(self) -> tuple[Crossing, ...]:
        """What crosses each cut at least, every boundary in the placement that is best for it."""
        start = {one.name: one.placements[0] for one in self.menus.boundaries}
        first = least = self.crossings(start)
        for one in self.menus.boundaries:
            tried = [self.crossings({**start, one.name: each}) for each in one.placements]
            least = tuple(
                Crossing(
                    forward_bytes=known.forward_bytes
                    + min(cut.forward_bytes - before.forward_bytes for cut in cuts),
                    backward_bytes=known.backward_bytes
                    + min(cut.backward_bytes - before.backward_bytes for cut in cuts),
                )
                for known, before, *cuts in zip(least, first, *tried, strict=True)
            )
        return least

    @property
    def most_tied(self) -> tuple[tuple[tuple[int, ...], float], ...]:
        """As ``tied``, with the most elements that each parameter can have on a rank."""
        return tuple((items, max(one.elements)) for one, items in self._read_by_root)

    def tied(self, boundary: Boundary) -> tuple[tuple[tuple[int, ...], float], ...]:
        """Parts of the root that read one trained parameter, with its elements on a rank, for each
        that several do and no block. Frozen ones are counted with each reader, never too low."""
        return tuple(
            (items, one.elements[one.placements.index(boundary[one.name])])
            for one, items in self._read_by_root
        )

    @cached_property
    def _read_by_root(self) -> tuple[tuple[SharedParameter, tuple[int, ...]], ...]:
        return tuple(
            (one, one.items)
            for one in self.menus.shared_parameters
            if one.trainable and one.name not in self.menus.apart
        )

    def apart(self, boundary: Boundary) -> tuple[Apart, ...]:
        """Parameters that blocks read and other items too."""
        return self._apart(lambda one: one.elements[one.placements.index(boundary[one.name])])

    @property
    def least_apart(self) -> tuple[Apart, ...]:
        """As ``apart``, with the fewest elements that each can have on a rank."""
        return self._apart(lambda one: min(one.elements))

    def _apart(self, elements: Callable[[SharedParameter], float]) -> tuple[Apart, ...]:
        return tuple(
            Apart(
                items=one.items,
                unit=Unit(
                    trained_elements=elements(one) * one.trainable,
                    frozen_elements=elements(one) * (not one.trainable),
                    count=1,
                ),
            )
            for one in self.menus.shared_parameters
            if one.name in self.menus.apart
        )

    def boundary(self, prices: Prices) -> Boundary:
        """Placements between items that are good at some prices, one class improved at a time."""
        if prices not in self._boundaries:
            self._boundaries[prices] = self._improved(prices)
        return self._boundaries[prices]

    @cached_property
    def any_boundary(self) -> Boundary:
        """Placements that are possible, and no more than that."""
        common = (*self.menus.boundaries, *self.menus.shared_parameters)
        return {one.name: one.placements[0] for one in common}

    def _improved(self, prices: Prices) -> Boundary:
        common = (*self.menus.boundaries, *self.menus.shared_parameters)
        chosen = dict(self.any_boundary)
        least = self._value(chosen, prices)
        improves = True
        while improves:
            improves = False
            for one in common:
                for placement in one.placements:
                    tried = {**chosen, one.name: placement}
                    value = self._value(tried, prices)
                    if value < least * (1 - _ROUNDING):
                        chosen, least, improves = tried, value, True
        return chosen

    def _value(self, boundary: Boundary, prices: Prices) -> float:
        return sum(
            self.counts[key] * float(menu.least_values([prices])[0])
            for key, menu in self.fixed(boundary).items()
        )


def family(
    pricing: Pricing,
    stack: Stack,
    tp: int,
    microbatch: int,
    recompute: Recompute,
    wider: Family | None = None,
) -> Family:
    """The family of one degree and microbatch; ``wider`` is one that allows to recompute more."""
    costs = pricing.microbatch(tp, microbatch)
    shared = wider.menus if wider else None
    menus = region_menus(stack, costs, recompute, shared, pricing.patterns)
    return Family(tp=tp, recompute=recompute, menus=menus)
