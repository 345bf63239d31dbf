"""What conversions between placements cost inside a region.

A pair of the placement in which a tensor is left and a port that a reader wants is paid once for
all readers that use it. Where the tensor is made again in the backward, so are the conversions that
the backward needs: those for what a reader saves, and those for readers that run again themselves.
A converted copy of a weight stays until the backward, unless all its readers run again.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from autoplan.search.conversion_costs import ConversionCost, ConversionPricer
from autoplan.search.folded_graph import FoldedSizes
from autoplan.search.operator_costs import MicrobatchCosts
from autoplan.search.regions.terms import NEVER, Flag, Terms, along, any_of, scope_of
from autoplan.search.regions.ways import Mode, Ways
from autoplan.sharding.placement import Placement, Replicate, grad_of, local_fraction
from autoplan.sharding.strategies import Port
from autoplan.trace.graph import Ref, TensorMeta


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """One reading of a tensor.

    Attributes:
        number: the decision of the reader; -1 for the loss, which has none.
        ports: the port that each of its choices wants.
        again: when the reader runs again.
        needed: when the backward needs what it read.
    """

    number: int
    ports: tuple[Port, ...]
    again: Flag
    needed: Flag

    def wants(self, port: Port) -> Flag:
        """When it reads by a port."""
        return Flag(self.number, tuple(each == port for each in self.ports))


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A tensor as its producer leaves it: a placement for each choice of decision ``number``."""

    number: int
    placements: tuple[Placement, ...]
    meta: TensorMeta
    again: Flag = NEVER
    is_weight: bool = False


def add_conversions(ways: Ways, costs: MicrobatchCosts, terms: Terms) -> None:
    """Adds the conversions of everything that a region reads and of what leaves it."""
    adder = _Adder(ways, costs.converter, terms, costs.sizes)
    for ref, uses in _uses(ways).items():
        source = adder.source(ref)
        if source is not None:
            adder.link(source, uses)
    for ref, uses in _leaving(ways).items():
        source = adder.source(ref)
        assert source is not None
        adder.link(source, uses)


def _uses(ways: Ways) -> dict[Ref, list[Use]]:
    """Readers of every tensor; outside blocks those in other items are among them."""
    found: dict[Ref, list[Use]] = defaultdict(list)
    for node in ways.region.calls:
        again = ways.runs_again(node)
        saved = {kept.operand for kept in node.saved}
        always = Flag(ways.number[node.name], (True,) * len(ways.strategies(node.name)))
        for operand, ref in enumerate(ways.region.reads[node.name]):
            found[ref].append(
                Use(
                    number=ways.number[node.name],
                    ports=tuple(s.inputs[operand] for s in ways.strategies(node.name)),
                    again=again,
                    needed=always if operand in saved else again,
                )
            )
    if not ways.region.is_block:
        for ref, uses in _exits(ways).items():
            found[ref].extend(uses)
    return found


def _leaving(ways: Ways) -> dict[Ref, list[Use]]:
    """Readers in other items of what a block makes; its own readers convert for themselves."""
    return _exits(ways) if ways.region.is_block else {}


def _exits(ways: Ways) -> dict[Ref, list[Use]]:
    found: dict[Ref, list[Use]] = defaultdict(list)
    for ref, boundary in ways.region.exits.items():
        placements = ways.boundaries[boundary].placements
        found[ref].append(
            Use(
                number=ways.crossing(boundary),
                ports=tuple(Port(placement, grad_of(placement)) for placement in placements),
                again=NEVER,
                needed=NEVER,
            )
        )
    if ways.region.loss is not None:
        whole = Port(Replicate(), Replicate())
        found[ways.region.loss].append(Use(number=-1, ports=(whole,), again=NEVER, needed=NEVER))
    return found


@dataclass(frozen=True, slots=True)
class _Adder:
    ways: Ways
    converter: ConversionPricer
    terms: Terms
    sizes: FoldedSizes

    def source(self, ref: Ref) -> Source | None:
        """The tensor in terms of decisions; None for what is whole on every rank."""
        ways, region = self.ways, self.ways.region
        if ref in region.entries:
            boundary = ways.boundaries[region.entries[ref]]
            return Source(
                number=ways.crossing(region.entries[ref]),
                placements=boundary.placements,
                meta=boundary.meta,
                again=ways.made_again(ref),
            )
        if ref.node in region.by_name:
            node = region.by_name[ref.node]
            return Source(
                number=ways.number[node.name],
                placements=tuple(s.outputs[ref.index] for s in ways.strategies(node.name)),
                meta=node.outputs[ref.index],
                again=ways.made_again(ref),
            )
        if ref.node in region.parameters:
            return Source(
                number=ways.number[ref.node],
                placements=ways.placements(ref.node),
                meta=self.sizes.meta(ref),
                is_weight=True,
            )
        return None

    def link(self, source: Source, uses: list[Use]) -> None:
        """All conversions of one tensor."""
        for port in dict.fromkeys(port for use in uses for port in use.ports):
            costs = [
                self.converter.cost(source.meta.nbytes, source.meta.requires_grad, each, port)
                for each in source.placements
            ]
            if any(cost.forward_s or cost.backward_s for cost in costs):
                self._pair(source, port, costs, [use for use in uses if port in use.ports])

    def _pair(
        self, source: Source, port: Port, costs: list[ConversionCost], uses: list[Use]
    ) -> None:
        """The conversions to one port, from each placement."""
        wanting = [use.wants(port) for use in uses]
        scope = scope_of(wanting, source.number)
        used = any_of(wanting, scope)
        forward = along(source.number, scope, [cost.forward_s for cost in costs])
        backward_s = used * along(source.number, scope, [cost.backward_s for cost in costs])
        impossible = np.isinf(forward)
        self.terms.block(scope, used & impossible)
        once_s = used * np.where(impossible, 0.0, forward)
        self.terms.add(
            scope,
            forward_s=once_s,
            forward_messages_s=once_s,
            backward_input_s=backward_s,
            backward_messages_s=backward_s,
        )
        if source.is_weight:
            self._copies(source, port, costs, uses)
        elif any(source.again.by_choice):
            self._again(source, port, costs, uses)

    def _again(
        self, source: Source, port: Port, costs: list[ConversionCost], uses: list[Use]
    ) -> None:
        """The conversions to one port that run again."""
        flags = [flag for use in uses for flag in (use.wants(port), use.needed)]
        scope = scope_of((*flags, source.again), source.number)
        needed = np.zeros((1,) * len(scope), dtype=bool)
        for use in uses:
            needed = needed | (use.wants(port).over(scope) & use.needed.over(scope))
        seconds = [0.0 if np.isinf(cost.forward_s) else cost.forward_s for cost in costs]
        again_s = (needed & source.again.over(scope)) * along(source.number, scope, seconds)
        self.terms.add(scope, backward_input_s=again_s, backward_messages_s=again_s)

    def _copies(
        self, source: Source, port: Port, costs: list[ConversionCost], uses: list[Use]
    ) -> None:
        """Copies of a weight that messages make for one port."""
        share = local_fraction(port.placement, self.converter.tp)
        is_sent = [bool(cost.forward) for cost in costs]
        if not any(is_sent):
            return
        flags = [flag for use in uses for flag in (use.wants(port), use.again)]
        scope = scope_of(flags, source.number)
        used = any_of((use.wants(port) for use in uses), scope)
        held = np.zeros((1,) * len(scope), dtype=bool)
        for use in uses if self.ways.mode is not Mode.ALL else ():
            held = held | (use.wants(port).over(scope) & ~use.again.over(scope))
        copied = along(source.number, scope, is_sent)
        seconds = along(source.number, scope, [c.forward_s if c.forward else 0.0 for c in costs])
        nbytes = source.meta.nbytes * share
        again = used & ~held
        self.terms.add(
            scope,
            kept_bytes=nbytes * (held & copied),
            recomputed_bytes=nbytes * (again & copied),
            backward_input_s=again * seconds,
            backward_messages_s=again * seconds,
        )
