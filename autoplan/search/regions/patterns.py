"""What the tables of a model's regions are sums of, found once for all microbatches.

Which figures the entries of a table are sums of follows from the strategies that can be chosen.
Degrees of ``tp`` that have the same ones have the same pattern.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np

from autoplan.search.elimination import LARGEST_TABLE
from autoplan.search.operator_costs import MicrobatchCosts
from autoplan.search.regions.conversion_terms import add_conversions, add_weight_conversions
from autoplan.search.regions.figures import ONE, PART
from autoplan.search.regions.pattern import Pattern, TooLargeError
from autoplan.search.regions.storage_terms import add_storages
from autoplan.search.regions.ways import Ways
from autoplan.sharding.exchange import EXCHANGE
from autoplan.sharding.placement import Shard


class Patterns:
    """The patterns of one model's regions."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Pattern] = {}
        self._too_large: set[Hashable] = set()

    def of(self, ways: Ways, costs: MicrobatchCosts) -> Pattern:
        """What a region's tables are sums of."""
        key = tuple(_key(ways))
        if key not in self._made:
            self._made[key] = _pattern(ways, costs, None)
        return self._made[key]

    def is_too_large(self, ways: Ways, costs: MicrobatchCosts) -> bool:
        """Whether a table has too many entries to be eliminated, whatever they are."""
        key = tuple(_key(ways))
        if key not in self._made and key not in self._too_large:
            try:
                self._made[key] = _pattern(ways, costs, LARGEST_TABLE)
            except TooLargeError:
                self._too_large.add(key)
        return key in self._too_large


def _key(ways: Ways) -> Iterator[Hashable]:
    """All that a pattern follows from."""
    yield ways.region.key
    yield ways.mode
    yield ways.decisions
    yield tuple(boundary.placements for boundary in ways.boundaries)
    for name in (*ways.region.parameters, *ways.region.by_name):
        yield ways.space.of(name)


def _pattern(ways: Ways, costs: MicrobatchCosts, most_entries: int | None) -> Pattern:
    sizes = tuple(len(decision.options) for decision in ways.decisions)
    pattern = Pattern(sizes, most_entries)
    _add_calls(ways, pattern)
    _add_parameters(ways, costs, pattern)
    add_conversions(ways, costs, pattern)
    add_weight_conversions(ways, costs, lambda _: pattern)
    add_storages(ways, lambda _: pattern)
    return pattern


def _add_calls(ways: Ways, pattern: Pattern) -> None:
    for node in ways.region.calls:
        if ways.region.is_view(node):
            continue
        number = ways.number[node.name]
        decision = ways.decisions[number]
        seconds = pattern.figures.operator(node.name, len(ways.space.of(node.name)))
        forward, backward, weight = seconds[:, list(decision.options)]
        sent = node.target == EXCHANGE
        of_forward = ("forward_s", *(("forward_messages_s",) if sent else ()))
        of_backward = ("backward_input_s", *(("backward_messages_s",) if sent else ()))
        pattern.add((number,), forward, 1.0, *of_forward)
        pattern.add((number,), forward, np.array(decision.again), *of_backward)
        pattern.add((number,), backward, 1.0, *of_backward)
        pattern.add((number,), weight, 1.0, "backward_weight_s")


def _add_parameters(ways: Ways, costs: MicrobatchCosts, pattern: Pattern) -> None:
    for name in ways.region.parameters:
        if name in ways.region.apart:
            continue
        meta = costs.sizes.nodes[name].outputs[0]
        split = [isinstance(each, Shard) for each in ways.placements(name)]
        kind = "trained_elements" if meta.requires_grad else "frozen_elements"
        pattern.add((ways.number[name],), np.where(split, PART, ONE), meta.numel, kind)
