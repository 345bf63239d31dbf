"""Which collectives a column sends over ``tp`` and ``cp``: what its seconds of messages are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoplan.search.conversion_costs import ConversionCost
from autoplan.search.operator_costs import MicrobatchCosts
from autoplan.search.regions.conversion_terms import Source, Use, links_of
from autoplan.search.regions.ways import Mode, Ways
from autoplan.sharding.strategies import Port


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """Some messages together; ``nbytes`` of the whole tensors that they are about."""

    seconds: float = 0.0
    nbytes: float = 0.0
    count: int = 0

    def __add__(self, other: Sent) -> Sent:
        return Sent(
            seconds=self.seconds + other.seconds,
            nbytes=self.nbytes + other.nbytes,
            count=self.count + other.count,
        )

    def times(self, number: int) -> Sent:
        """So many times as much."""
        return Sent(
            seconds=number * self.seconds, nbytes=number * self.nbytes, count=number * self.count
        )


def messages_of(ways: Ways, costs: MicrobatchCosts, choices: Sequence[int]) -> Mapping[str, Sent]:
    """One microbatch's messages by collective, forward, backward and once again.

    Args:
        choices: of all decisions of the region.
    """
    found = defaultdict[str, Sent](Sent)
    for source, uses in links_of(ways, costs):
        placement = source.placements[choices[source.number]]
        for port, readers in _by_port(uses, choices).items():
            meta = source.meta
            cost = costs.converter.cost(meta.nbytes, meta.requires_grad, placement, port)
            again = _is_sent_again(ways, source, readers, choices)
            _send(found, cost, forwards=1 + again)
    return found


def exchanges_of(ways: Ways, costs: MicrobatchCosts, choices: Sequence[int]) -> Mapping[str, Sent]:
    """As ``messages_of``, over ``cp``."""
    found = defaultdict[str, Sent](Sent)
    for node in ways.region.calls:
        if node.name not in costs.exchanges:
            continue
        number = ways.number[node.name]
        decision, choice = ways.decisions[number], choices[number]
        cost = costs.exchanges[node.name][decision.options[choice]]
        _send(found, cost, forwards=1 + decision.again[choice])
    return found


def _send(found: dict[str, Sent], cost: ConversionCost, *, forwards: int) -> None:
    """Counts the messages of so many forwards and of one backward."""
    for sent, seconds, times in (
        (cost.forward, cost.forward_s, forwards),
        (cost.backward, cost.backward_s, 1),
    ):
        for kind, nbytes in sent:
            once = Sent(seconds=seconds / len(sent), nbytes=nbytes, count=1)
            found[kind] += once.times(times)


def _by_port(uses: list[Use], choices: Sequence[int]) -> Mapping[Port, list[Use]]:
    found: dict[Port, list[Use]] = {}
    for use in uses:
        port = use.ports[0] if use.number < 0 else use.ports[choices[use.number]]
        found.setdefault(port, []).append(use)
    return found


def _is_sent_again(ways: Ways, source: Source, uses: list[Use], choices: Sequence[int]) -> bool:
    """Whether the backward converts again; weights if no reader has kept the copy."""
    if source.is_weight:
        return ways.mode is Mode.ALL or all(use.again.at(choices) for use in uses)
    return source.again.at(choices) and any(use.needed.at(choices) for use in uses)
