"""What a region keeps from its forward, and what its backward makes again.

A storage is a tensor (or what enters) in one placement, views followed to what allocated it. Its
*holders* are the calls that save it for their backward and the calls that run again and read it. It
is kept if it has holders and what makes it does not run again. If what makes it does, it is made
again for those that save it. What a call keeps of itself goes with the call.

What enters a block of which something runs again is kept as it entered; its copies in other
placements are kept, or made again, as the decision about the entry says. Where blocks of a kind
read the same tensor, each counts its share of it, but its own copy in another placement in full.
Inputs, and what every stage makes for itself, live anyway, but not the parts that are cut from
them: every reader counts a copy of its own, also where some share one. Counted together, the many
readers of tables of angles would depend on each other in too many ways. Where the holders of one
storage do, they count in groups.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from autoplan.search.elimination import LARGEST_TABLE
from autoplan.search.regions.figures import SavedBytes, Slots
from autoplan.search.regions.pattern import Pattern
from autoplan.search.regions.terms import ALWAYS, NEVER, Flag, along, any_of, scope_of
from autoplan.search.regions.ways import Mode, Ways
from autoplan.search.storages import followed
from autoplan.sharding.placement import Placement, Shard
from autoplan.sharding.strategies import Strategy
from autoplan.trace.graph import OpNode, Ref, SavedTensor

_Key = tuple[Ref, Placement, bool, str]
"""Tensor, placement, whether ranks have parts, and the reader if it counts a copy of its own."""


@dataclass(kw_only=True, slots=True)
class _Storage:
    """What it is at most as large as; by decision, the choices whose call saves it or reads it."""

    whole: dict[Ref | SavedBytes, None] = field(default_factory=dict)
    saved_by: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    read_by: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))


def add_storages(ways: Ways, pattern_of: Callable[[str], Pattern]) -> None:
    """Adds everything that some choice keeps or makes again.

    Args:
        pattern_of: where to add what a node makes, by its name.
    """

    def adder(name: str) -> _Adder:
        return _Adder(ways, pattern_of(name))

    for node in ways.region.calls:
        adder(node.name).internal(node)
    for (ref, placement, is_split, _), storage in _storages(ways).items():
        if _is_cut(ways, ref, placement):
            again = ALWAYS if ways.mode is Mode.ALL else NEVER
        elif ref.node in ways.region.by_name or ref in ways.region.entries:
            again = ways.made_again(ref)
        else:
            continue
        own = adder(ref.node)
        counted = own.counted(ref, placement)
        nbytes = own.nbytes(storage, is_split=is_split)
        own.storage(nbytes, counted, storage, again)
    for ref, boundary in ways.region.entries.items() if ways.keeps_entries else ():
        adder(ref.node).entry(ref, boundary)


def _storages(ways: Ways) -> dict[_Key, _Storage]:
    found: dict[_Key, _Storage] = defaultdict(_Storage)
    for node in ways.region.calls:
        for choice, strategy in enumerate(ways.strategies(node.name)):
            for key, whole in _saved(ways, node, strategy):
                found[key].whole[whole] = None
                found[key].saved_by[ways.number[node.name]].add(choice)
            if ways.mode is Mode.CALLS and node.name in ways.region.needed:
                for key in _read(ways, node, strategy):
                    found[key].whole[key[0]] = None
                    found[key].read_by[ways.number[node.name]].add(choice)
    return found


def _saved(ways: Ways, node: OpNode, strategy: Strategy) -> Iterator[tuple[_Key, SavedBytes]]:
    for number, kept in enumerate(node.saved):
        if kept.operand is not None:
            ref = ways.region.reads[node.name][kept.operand]
            placement = strategy.inputs[kept.operand].placement
        elif _is_own(kept, node):
            assert kept.source is not None
            ref, placement = kept.source, strategy.outputs[kept.source.index]
        else:
            continue
        yield _key(ways, ref, placement, node), SavedBytes(node.name, number)


def _read(ways: Ways, node: OpNode, strategy: Strategy) -> Iterator[_Key]:
    for ref, port in zip(ways.region.reads[node.name], strategy.inputs, strict=True):
        yield _key(ways, ref, port.placement, node)


def _key(ways: Ways, ref: Ref, placement: Placement, reader: OpNode) -> _Key:
    is_split = isinstance(placement, Shard)
    if _is_cut(ways, ref, placement):
        return ref, placement, is_split, reader.name
    return *followed(ways.space, ref, placement, ways.region.by_name), is_split, ""


def _is_cut(ways: Ways, ref: Ref, placement: Placement) -> bool:
    """Whether a tensor is a part of what every rank has whole; views of that stay whole."""
    return ways.region.is_whole(ref) and isinstance(placement, Shard)


def _is_own(kept: SavedTensor, node: OpNode) -> bool:
    return kept.source is not None and kept.source.node == node.name


@dataclass(frozen=True, slots=True)
class _Adder:
    ways: Ways
    pattern: Pattern

    def internal(self, node: OpNode) -> None:
        """What a call keeps of itself (log-sum-exp, mean and rstd, masks)."""
        number = self.ways.number[node.name]
        split = [s.splits_work for s in self.ways.strategies(node.name)]
        again = np.array(self.ways.decisions[number].again)
        for at, kept in enumerate(node.saved):
            if kept.operand is None and not _is_own(kept, node):
                nbytes = self._either(SavedBytes(node.name, at), split)
                self.pattern.add((number,), nbytes, ~again, "kept_bytes")
                self.pattern.add((number,), nbytes, again, "recomputed_bytes")

    def nbytes(self, storage: _Storage, *, is_split: bool) -> int:
        """The figure of how large a storage is at most."""
        figures = self.pattern.figures
        return figures.largest(figures.nbytes(each, is_split=is_split) for each in storage.whole)

    def storage(
        self, nbytes: int, counted: tuple[int, tuple[float, ...]], storage: _Storage, again: Flag
    ) -> None:
        """One tensor in one placement, how much of it counts, and when it is made again."""
        saved = [self._flag(number, at) for number, at in storage.saved_by.items()]
        if any(again.by_choice) and saved:
            self._count(saved, again, nbytes, counted, "recomputed_bytes")
        if not all(again.by_choice):
            holding = list(self._holding(storage))
            self._count(holding, again.inverse(), nbytes, counted, "kept_bytes")

    def _count(
        self,
        holders: list[Flag],
        there: Flag,
        nbytes: int,
        counted: tuple[int, tuple[float, ...]],
        amount: str,
    ) -> None:
        """Counts one tensor to an amount where it is there and some holder asks for it."""
        number, factors = counted
        crossing = () if number < 0 else (number,)
        self.pattern.check(scope_of((*holders, there), *crossing))
        for some in self._groups(holders, there, *crossing):
            scope = scope_of((*some, there), *crossing)
            where = any_of(some, scope) & there.over(scope)
            self.pattern.add(scope, nbytes, along(number, scope, factors) * where, amount)

    def _groups(self, flags: list[Flag], there: Flag, *crossing: int) -> list[list[Flag]]:
        """The flags in as few groups as have tables worth making, in order.

        There is one nearly always. The parts of a fused projection, each turned by angles, can have
        so many readers that there are more; each then counts a copy, which is too much at worst.
        """
        certain = [flag for flag in flags if all(flag.by_choice)]
        groups: list[list[Flag]] = [[]]
        for flag in certain[:1] or flags:
            scope = scope_of((*groups[-1], flag, there), *crossing)
            sizes = (len(self.ways.decisions[number].options) for number in scope)
            if groups[-1] and math.prod(sizes) > LARGEST_TABLE:
                groups.append([])
            groups[-1].append(flag)
        return groups

    def _either(self, of: Ref | SavedBytes, split: Sequence[bool]) -> Slots:
        """Its bytes for choices of which some split it."""
        whole, part = (self.pattern.figures.nbytes(of, is_split=each) for each in (False, True))
        return np.where(split, part, whole)

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

    def counted(self, ref: Ref, placement: Placement) -> tuple[int, tuple[float, ...]]:
        """How much of a tensor's copy in a placement a region counts, for each way it crosses.

        Returns the decision of its boundary and a factor for each of its choices; -1 and one
        factor for what is made here.
        """
        ways, region = self.ways, self.ways.region
        if ref not in region.entries:
            return -1, (1.0,)
        boundary, share = region.entries[ref], region.shares[ref]

        def factor(crossing: Placement) -> float:
            if ways.keeps_entries and crossing == placement:
                return 0.0
            return share if crossing == placement else 1.0

        factors = tuple(map(factor, ways.boundaries[boundary].placements))
        if len(set(factors)) == 1:
            return -1, factors[:1]
        return ways.crossing(boundary), factors

    def entry(self, ref: Ref, boundary: int) -> None:
        """What enters a block and is kept as it entered."""
        ways = self.ways
        placements = ways.boundaries[boundary].placements
        nbytes = self._either(ref, [isinstance(each, Shard) for each in placements])
        share = ways.region.shares[ref]
        self.pattern.add((ways.crossing(boundary),), nbytes, share, "kept_bytes")
