"""What a column keeps of a microbatch, by the node that makes it: what its bytes are made of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from autoplan.search.operator_costs import MicrobatchCosts
from autoplan.search.regions.conversion_terms import add_weight_conversions
from autoplan.search.regions.pattern import Pattern
from autoplan.search.regions.storage_terms import add_storages
from autoplan.search.regions.terms import LAYER, Terms
from autoplan.search.regions.ways import Ways


def kept_of(ways: Ways, costs: MicrobatchCosts, choices: Sequence[int]) -> Mapping[str, float]:
    """Bytes that stay from the forward to the backward, by name of a call, parameter or door.

    Args:
        choices: of all decisions of the region.
    """
    sizes = tuple(len(decision.options) for decision in ways.decisions)
    parts = defaultdict[str, Pattern](lambda: Pattern(sizes))
    add_storages(ways, parts.__getitem__)
    add_weight_conversions(ways, costs, parts.__getitem__)
    found = {name: _kept_bytes(part.terms(ways, costs), choices) for name, part in parts.items()}
    return {name: nbytes for name, nbytes in found.items() if nbytes}


def _kept_bytes(terms: Terms, choices: Sequence[int]) -> float:
    layer = LAYER["kept_bytes"]
    return sum(
        float(table[(layer, *(choices[number] for number in scope))])
        for scope, table in terms.tables.items()
    )
