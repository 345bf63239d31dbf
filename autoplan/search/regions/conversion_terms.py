"""What conversions between placements cost inside a region.

A pair of the placement in which a tensor is left and a port that a reader wants is paid once for
all readers that use it. Where the tensor is made again in the backward, so are the conversions that
the backward needs: those for what a reader saves, and those for readers that run again themselves.
A converted copy of a weight stays until the backward, unless all its readers run again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autoplan.search.elimination import Scope
from autoplan.search.operator_costs import MicrobatchCosts
from autoplan.search.regions.figures import NOTHING, Slots
from autoplan.search.regions.pattern import Pattern
from autoplan.search.regions.terms import NEVER, Flag, Mask, along, any_of, scope_of
from autoplan.search.regions.ways import Mode, Ways
from autoplan.sharding.placement import Placement, Replicate, Shard, grad_of
from autoplan.sharding.redistribute import SILENT, Motion, conversion, is_possible
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

    ref: Ref
    number: int
    placements: tuple[Placement, ...]
    meta: TensorMeta
    again: Flag = NEVER
    is_weight: bool = False


def add_conversions(ways: Ways, costs: MicrobatchCosts, pattern: Pattern) -> None:
    """Adds the conversions of all activations that a region reads, and of what leaves it."""
    for source, uses in links_of(ways, costs):
        if not source.is_weight:
            _Link(source, uses, pattern).add()


def add_weight_conversions(
    ways: Ways, costs: MicrobatchCosts, pattern_of: Callable[[str], Pattern]
) -> None:
    """Adds the conversions of parameters, with the copies that stay.

    Args:
        pattern_of: where to add what is about a parameter, by its name.
    """
    for source, uses in links_of(ways, costs):
        if source.is_weight:
            link = _Link(source, uses, pattern_of(source.ref.node))
            link.add()
            link.add_copies(stay=ways.mode is not Mode.ALL)


def links_of(ways: Ways, costs: MicrobatchCosts) -> Iterator[tuple[Source, list[Use]]]:
    """Every tensor that is read in a placement of choice, with the readers that share copies."""
    for ref, uses in (*_uses(ways).items(), *_leaving(ways).items()):
        source = _source(ways, costs, ref)
        if source is not None:
            yield source, uses


def _source(ways: Ways, costs: MicrobatchCosts, ref: Ref) -> Source | None:
    """The tensor in terms of decisions; None for what is whole on every rank."""
    region = ways.region
    if ref in region.entries:
        boundary = ways.boundaries[region.entries[ref]]
        return Source(
            ref=ref,
            number=ways.crossing(region.entries[ref]),
            placements=boundary.placements,
            meta=boundary.meta,
            again=ways.made_again(ref),
        )
    if ref.node in region.by_name:
        node = region.by_name[ref.node]
        return Source(
            ref=ref,
            number=ways.number[node.name],
            placements=tuple(s.outputs[ref.index] for s in ways.strategies(node.name)),
            meta=node.outputs[ref.index],
            again=ways.made_again(ref),
        )
    if ref.node in region.parameters:
        return Source(
            ref=ref,
            number=ways.number[ref.node],
            placements=ways.placements(ref.node),
            meta=costs.sizes.meta(ref),
            is_weight=True,
        )
    return None


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


class _Link:
    """All conversions of one tensor: motions by placement (first) and port."""

    def __init__(self, source: Source, uses: list[Use], pattern: Pattern) -> None:
        self.source = source
        self.uses = uses
        self.pattern = pattern
        self.ports = tuple(dict.fromkeys(port for use in uses for port in use.ports))
        placements = tuple(dict.fromkeys(source.placements))
        self.left = [placements.index(each) for each in source.placements]
        moves = [[self._moves(each, port) for port in self.ports] for each in placements]
        self.forward = np.array([[forward for forward, _, _ in row] for row in moves])
        self.backward = np.array([[backward for _, backward, _ in row] for row in moves])
        self.impossible = np.array([[never for _, _, never in row] for row in moves])

    def _moves(self, placement: Placement, port: Port) -> tuple[int, int, bool]:
        """Seconds there and back, as figures, and whether it cannot be."""
        if not is_possible(placement, port):
            return NOTHING, NOTHING, True
        learns = self.source.meta.requires_grad
        found = conversion(placement, port, differentiable=learns)
        if found is None:
            return NOTHING, NOTHING, False
        return self._moved(found.forward), self._moved(found.backward), False

    def _moved(self, motion: Motion) -> int:
        figures = self.pattern.figures
        return NOTHING if motion in SILENT else figures.motion(self.source.ref, motion)

    def add(self) -> None:
        """What they take, and what running some of them again takes."""
        costly = ((self.forward != NOTHING) | (self.backward != NOTHING) | self.impossible).any(0)
        if not costly.any():
            return
        if len(self.uses) == 1 and self.uses[0].number >= 0:
            self._add_single()
            return
        for p in map(int, np.flatnonzero(costly)):
            self._add_shared(p)

    def _add_single(self) -> None:
        (use,) = self.uses
        scope = scope_of((), self.source.number, use.number)
        at = self._at(use, scope)
        self.pattern.block(scope, self.impossible[at])
        self._add_once(scope, self.forward[at], self.backward[at], 1.0)
        if self._is_repeated(use):
            scope = scope_of((self.source.again, use.needed), self.source.number, use.number)
            again = self.source.again.over(scope) & use.needed.over(scope)
            self._add_again(scope, self.forward[self._at(use, scope)], again)

    def _at(self, use: Use, scope: Scope) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Placement and port of every combination."""
        wanted = [self.ports.index(port) for port in use.ports]
        return along(self.source.number, scope, self.left), along(use.number, scope, wanted)

    def _add_shared(self, p: int) -> None:
        """Conversions to one port, which readers share."""
        port = self.ports[p]
        uses = [use for use in self.uses if port in use.ports]
        wanting = [use.wants(port) for use in uses]
        scope = scope_of(wanting, self.source.number)
        used = any_of(wanting, scope)
        self.pattern.block(scope, used & self._left(self.impossible, p, scope))
        forward, backward = (self._left(slots, p, scope) for slots in (self.forward, self.backward))
        self._add_once(scope, forward, backward, used)
        if any(map(self._is_repeated, uses)):
            flags = [flag for use in uses for flag in (use.wants(port), use.needed)]
            scope = scope_of((*flags, self.source.again), self.source.number)
            needed = np.zeros((1,) * len(scope), dtype=bool)
            for use in uses:
                needed = needed | (use.wants(port).over(scope) & use.needed.over(scope))
            again = needed & self.source.again.over(scope)
            self._add_again(scope, self._left(self.forward, p, scope), again)

    def _left(self, table: npt.NDArray[Any], p: int, scope: Scope) -> npt.NDArray[Any]:
        """A column of a table for every choice of the producer."""
        return along(self.source.number, scope, table[self.left, p].tolist())

    def _is_repeated(self, use: Use) -> bool:
        return any(self.source.again.by_choice) and any(use.needed.by_choice)

    def _add_once(self, scope: Scope, forward: Slots, backward: Slots, times: Mask | float) -> None:
        self.pattern.add(scope, forward, times, "forward_s", "forward_messages_s")
        self.pattern.add(scope, backward, times, "backward_input_s", "backward_messages_s")

    def _add_again(self, scope: Scope, slots: Slots, times: Mask) -> None:
        self.pattern.add(scope, slots, times, "backward_input_s", "backward_messages_s")

    def add_copies(self, *, stay: bool) -> None:
        """Copies of a weight that messages make: those that stay, and those that are made again.

        Args:
            stay: whether a copy stays where a reader does not run again.
        """
        is_sent = self.forward != NOTHING
        for p in map(int, np.flatnonzero(is_sent.any(0))):
            port = self.ports[p]
            uses = [use for use in self.uses if port in use.ports]
            flags = [flag for use in uses for flag in (use.wants(port), use.again)]
            scope = scope_of(flags, self.source.number)
            copied = self._left(is_sent, p, scope)
            copied = copied & any_of((use.wants(port) for use in uses), scope)
            held = np.zeros((1,) * len(scope), dtype=bool)
            for use in uses if stay else ():
                held = held | (use.wants(port).over(scope) & ~use.again.over(scope))
            is_split = isinstance(port.placement, Shard)
            nbytes = self.pattern.figures.nbytes(self.source.ref, is_split=is_split)
            self.pattern.add(scope, nbytes, copied & held, "kept_bytes")
            self.pattern.add(scope, nbytes, copied & ~held, "recomputed_bytes")
            self._add_again(scope, self._left(self.forward, p, scope), copied & ~held)
