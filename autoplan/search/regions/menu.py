"""A region's menu: the modes of running again side by side, each solved exactly."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autoplan.search.operator_costs import MicrobatchCosts
from autoplan.search.regions.column import Column, Least, Prices, value_of
from autoplan.search.regions.conversion_terms import add_conversions, add_weight_conversions
from autoplan.search.regions.program import Program
from autoplan.search.regions.reduction import Reduction, reduced
from autoplan.search.regions.storage_terms import add_storages
from autoplan.search.regions.terms import AMOUNTS, Amounts, Terms
from autoplan.search.regions.ways import Mode, Ways
from autoplan.sharding.placement import local_fraction


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """All ways of a region in one mode, as tables.

    Attributes:
        reduction: the amounts, without decisions that are clear whatever the prices.
        operator_bytes: for each decision, bytes of the operator at work for each choice.
    """

    ways: Ways
    reduction: Reduction
    operator_bytes: tuple[tuple[float, ...], ...]


def tables_of(
    ways: Sequence[Ways], widest: Ways, costs: MicrobatchCosts, given: Collection[str] = ()
) -> tuple[Table, ...]:
    """The tables of a region in several modes.

    Args:
        widest: a mode that has the choices of all of them.
        given: decisions that may be taken from outside.
    """
    common = Terms(tuple(len(decision.options) for decision in widest.decisions))
    _add_calls(widest, costs, common)
    _add_parameters(widest, costs, common)
    add_conversions(widest, costs, common)
    return tuple(_table(each, widest, common, costs, given) for each in ways)


def _table(
    ways: Ways, widest: Ways, common: Terms, costs: MicrobatchCosts, given: Collection[str]
) -> Table:
    terms = common.selected(
        [
            [pairs.index(pair) for pair in zip(each.options, each.again, strict=True)]
            for each, wide in zip(ways.decisions, widest.decisions, strict=True)
            for pairs in [list(zip(wide.options, wide.again, strict=True))]
        ]
    )
    add_weight_conversions(ways, costs, terms)
    add_storages(ways, costs, terms)
    working = [(0.0,) * size for size in terms.sizes]
    for node in ways.region.calls:
        number = ways.number[node.name]
        priced = costs.operators[costs.space.number[node.name]]
        working[number] = tuple(
            priced[option].transient_bytes for option in ways.decisions[number].options
        )
    kept = {ways.number[name] for name in given if name in ways.number}
    return Table(ways=ways, reduction=reduced(terms, kept), operator_bytes=tuple(working))


def _add_calls(ways: Ways, costs: MicrobatchCosts, terms: Terms) -> None:
    for node in ways.region.calls:
        if ways.region.is_view(node):
            continue
        number = ways.number[node.name]
        decision = ways.decisions[number]
        priced = costs.operators[costs.space.number[node.name]]
        taken = [priced[option] for option in decision.options]
        forward = np.array([cost.forward_s for cost in taken])
        backward = np.array([cost.backward_s for cost in taken])
        weight = np.array([cost.backward_weight_s for cost in taken])
        terms.add(
            (number,),
            forward_s=forward,
            backward_input_s=backward - weight + forward * np.array(decision.again),
            backward_weight_s=weight,
        )


def _add_parameters(ways: Ways, costs: MicrobatchCosts, terms: Terms) -> None:
    for name in ways.region.parameters:
        meta = costs.sizes.nodes[name].outputs[0]
        shares = [local_fraction(each, ways.space.tp) for each in ways.placements(name)]
        kind = "trained_elements" if meta.requires_grad else "frozen_elements"
        terms.add((ways.number[name],), **{kind: meta.numel * np.array(shares)})


class RegionMenu:
    """All ways to run a region, with some of its decisions taken.

    Args:
        tables: one for each mode, of which the first is taken when several are as cheap.
        taken: by decision name, the choice that it takes.
    """

    def __init__(self, tables: tuple[Table, ...], taken: Mapping[str, int]) -> None:
        self.tables = tables
        self._taken = [
            {table.ways.number[name]: choice for name, choice in taken.items()} for table in tables
        ]
        self.programs = tuple(
            Program(table.reduction.terms.restricted(at), table.ways.region.key)
            for table, at in zip(tables, self._taken, strict=True)
        )
        self._known: dict[Prices, Least] = {}

    def least_operator_bytes(self) -> float:
        """What the largest operator at work holds at least, whatever is chosen."""
        return min(
            max((min(row) for row in table.operator_bytes), default=0.0) for table in self.tables
        )

    def least(self, prices: Prices) -> Least:
        """The best way at some prices; always the same for the same prices, found once."""
        if prices not in self._known:
            self._known[prices] = self._least(prices)
        return self._known[prices]

    def _least(self, prices: Prices) -> Least:
        vector = np.array([getattr(prices, name, 0.0) for name in AMOUNTS])
        asked = {mode: self.programs[mode].priced(vector) for mode in self._worth_asking(prices)}
        mode = min(asked, key=lambda mode: asked[mode].value)
        column = self._column(mode, asked[mode].choices())
        return Least(value_of(column, prices), column)

    def _worth_asking(self, prices: Prices) -> Iterable[int]:
        """The modes that can be best; where memory is free, nothing gains from running again."""
        asked = range(len(self.tables))
        return asked if prices.kept_bytes or self.tables[0].ways.mode is not Mode.NOTHING else [0]

    def _column(self, mode: int, found: tuple[int, ...]) -> Column:
        taken, table = self._taken[mode], self.tables[mode]
        choices = table.reduction.complete(
            [taken.get(number, choice) for number, choice in enumerate(found)]
        )
        amounts: Amounts = self.programs[mode].amounts(found)
        working = table.operator_bytes
        return Column(
            choices=(mode, *choices),
            operator_bytes=max(
                (row[choice] for row, choice in zip(working, choices, strict=True)), default=0.0
            ),
            **dict(zip(AMOUNTS, amounts.tolist(), strict=True)),
        )
