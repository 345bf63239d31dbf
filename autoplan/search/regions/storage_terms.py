"""What a region keeps from its forward, and what its backward makes again.

A storage is a tensor (or what enters) in one placement, views followed to what allocated it. Its
*holders* are the calls that save it for their backward and the calls that run again and read it. It
is kept if it has holders and what makes it does not run again. If what makes it does, it is made
again for those that save it. What a call keeps of itself goes with the call.

What enters a block of which something runs again is kept as it entered; its copies in other
placements are kept, or made again, as the decision about the entry says. What all blocks of a kind
read alike is kept once, where it is made. Inputs, and what every stage makes for itself, live
anyway.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from autoplan.search.conversion_costs import ConversionPricer
from autoplan.search.operator_costs import MicrobatchCosts
from autoplan.search.regions.terms import Flag, Mask, Terms, any_of, scope_of
from autoplan.search.regions.ways import Mode, Ways
from autoplan.search.storages import followed
from autoplan.sharding.placement import Placement, grad_of, local_fraction
from autoplan.sharding.strategies import Port, Strategy
from autoplan.trace.graph import OpNode, Ref, SavedTensor

_Key = tuple[Ref, Placement, float]


@dataclass(kw_only=True, slots=True)
class _Storage:
    """Bytes on one rank; by decision, the choices whose call saves it or reads it."""

    nbytes: float = 0.0
    saved_by: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    read_by: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))


def add_storages(ways: Ways, costs: MicrobatchCosts, terms: Terms) -> None:
    """Adds everything that some choice keeps or makes again."""
    adder = _Adder(ways, costs, terms)
    for node in ways.region.calls:
        adder.internal(node)
    for (ref, placement, _), storage in _storages(ways, costs).items():
        if ref.node in ways.region.by_name or ref in ways.region.entries:
            adder.storage(ref, placement, storage)
    adder.entries()


def _storages(ways: Ways, costs: MicrobatchCosts) -> dict[_Key, _Storage]:
    found: dict[_Key, _Storage] = defaultdict(_Storage)
    for node in ways.region.calls:
        for choice, strategy in enumerate(ways.strategies(node.name)):
            for key, nbytes in _saved(ways, node, strategy):
                found[key].nbytes = max(found[key].nbytes, nbytes)
                found[key].saved_by[ways.number[node.name]].add(choice)
            if ways.mode is Mode.CALLS and node.name in ways.region.needed:
                for key, nbytes in _read(ways, costs, node, strategy):
                    found[key].nbytes = max(found[key].nbytes, nbytes)
                    found[key].read_by[ways.number[node.name]].add(choice)
    return found


def _saved(ways: Ways, node: OpNode, strategy: Strategy) -> Iterator[tuple[_Key, float]]:
    for kept in node.saved:
        if kept.operand is not None:
            ref = ways.region.reads[node.name][kept.operand]
            placement = strategy.inputs[kept.operand].placement
        elif _is_own(kept, node):
            assert kept.source is not None
            ref, placement = kept.source, strategy.outputs[kept.source.index]
        else:
            continue
        share = local_fraction(placement, ways.space.tp)
        behind = followed(ways.space, ref, placement, ways.region.by_name)
        yield (*behind, share), kept.nbytes * share


def _read(
    ways: Ways, costs: MicrobatchCosts, node: OpNode, strategy: Strategy
) -> Iterator[tuple[_Key, float]]:
    for ref, port in zip(ways.region.reads[node.name], strategy.inputs, strict=True):
        share = local_fraction(port.placement, ways.space.tp)
        behind = followed(ways.space, ref, port.placement, ways.region.by_name)
        yield (*behind, share), costs.sizes.meta(behind[0]).nbytes * share


def _is_own(kept: SavedTensor, node: OpNode) -> bool:
    return kept.source is not None and kept.source.node == node.name


@dataclass(frozen=True, slots=True)
class _Adder:
    ways: Ways
    costs: MicrobatchCosts
    terms: Terms

    @property
    def converter(self) -> ConversionPricer:
        return self.costs.converter

    def internal(self, node: OpNode) -> None:
        """What a call keeps of itself (log-sum-exp, mean and rstd, masks)."""
        nbytes = sum(k.nbytes for k in node.saved if k.operand is None and not _is_own(k, node))
        if nbytes:
            tp = self.ways.space.tp
            split = [s.splits_work for s in self.ways.strategies(node.name)]
            share = np.where(split, 1 / tp, 1.0)
            again = np.array(self.ways.runs_again(node).by_choice)
            self.terms.add(
                (self.ways.number[node.name],),
                kept_bytes=nbytes * share * ~again,
                recomputed_bytes=nbytes * share * again,
            )

    def storage(self, ref: Ref, placement: Placement, storage: _Storage) -> None:
        """One tensor in one placement."""
        again = self.ways.made_again(ref)
        beside = self._beside(ref, placement)
        if not any(beside.by_choice):
            return
        saved = [self._flag(number, at) for number, at in storage.saved_by.items()]
        if any(again.by_choice) and saved:
            scope = scope_of((*saved, again, beside))
            made = any_of(saved, scope) & again.over(scope) & beside.over(scope)
            self.terms.add(scope, recomputed_bytes=storage.nbytes * made)
        if not all(again.by_choice):
            held = list(self._holding(storage))
            scope = scope_of((*held, again, beside))
            kept: Mask = any_of(held, scope) & ~again.over(scope) & beside.over(scope)
            self.terms.add(scope, kept_bytes=storage.nbytes * kept)

    def _flag(self, number: int, at: set[int]) -> Flag:
        count = len(self.ways.decisions[number].options)
        return Flag(number, tuple(choice in at for choice in range(count)))

    def _holding(self, storage: _Storage) -> Iterator[Flag]:
        """For each call, the choices with which it holds a storage until its backward."""
        for number in dict.fromkeys((*storage.saved_by, *storage.read_by)):
            again = Flag(number, self.ways.decisions[number].again)
            saves = self._flag(number, storage.saved_by.get(number, set()))
            reads = self._flag(number, storage.read_by.get(number, set()))
            yield saves.both(again.inverse()).either(reads.both(again))

    def _beside(self, ref: Ref, placement: Placement) -> Flag:
        """When a copy in this placement is something beside what crosses a boundary and stays."""
        ways, region = self.ways, self.ways.region
        if ref in region.kept_exits:
            boundary, is_kept = region.exits[ref], True
        else:
            boundary = region.entries.get(ref, -1)
            is_kept = ways.keeps_entries or ref in region.alike
        if boundary < 0 or not is_kept:
            return Flag(-1, (True,))
        crossing = ways.boundaries[boundary]
        return Flag(
            ways.crossing(boundary),
            tuple(
                placement != each and (ref not in region.alike or self._sends(each, placement, ref))
                for each in crossing.placements
            ),
        )

    def _sends(self, source: Placement, placement: Placement, ref: Ref) -> bool:
        """Whether a copy comes by messages; else it is a part of what there is."""
        meta = self.costs.sizes.meta(ref)
        port = Port(placement, grad_of(placement))
        return bool(self.converter.cost(meta.nbytes, False, source, port).forward)

    def entries(self) -> None:
        """What enters and is kept as it entered, and what is kept for blocks that read it alike."""
        ways, region = self.ways, self.ways.region
        kept = {ref: region.exits[ref] for ref in region.kept_exits}
        if ways.keeps_entries:
            kept |= {ref: b for ref, b in region.entries.items() if ref not in region.alike}
        for ref, boundary in kept.items():
            shares = [
                local_fraction(each, ways.space.tp) for each in ways.boundaries[boundary].placements
            ]
            nbytes = self.costs.sizes.meta(ref).nbytes * np.array(shares)
            self.terms.add((ways.crossing(boundary),), kept_bytes=nbytes)
