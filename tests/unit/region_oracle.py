"""What one way of running a region takes, counted one by one from the rules.

Nothing of ``autoplan.search.regions`` is used. Operators are priced by ``microbatch_costs``;
conversions here, from their messages. The model is one of ``region_graphs``: everything that
crosses between items is in one of two boundaries, what enters all blocks alike and the rest.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from autoplan.search.operator_costs import MicrobatchCosts
from autoplan.sharding.placement import Placement, Replicate, Shard, grad_of, local_fraction
from autoplan.sharding.redistribute import conversion, is_possible, messages
from autoplan.sharding.strategies import Port, Strategy
from autoplan.trace.graph import OpGraph, OpNode, Ref
from cost_models.collectives import collective_s
from hardware_profiles.spec import ClusterSpec

_Key = tuple[Ref, Placement, str]


@dataclass(frozen=True, kw_only=True)
class Way:
    """An assignment of one region.

    Attributes:
        mode: of running again, ``nothing``, ``calls`` or ``all``.
        crossing: placement of what crosses, by producer as the folded graph names it.
        again: calls that run again, without views; entries that convert again.
    """

    mode: str
    strategies: Mapping[str, Strategy]
    storage: Mapping[str, Placement]
    crossing: Mapping[str, Placement]
    again: frozenset[str] = frozenset()


@dataclass
class Amounts:
    forward_s: float = 0.0
    backward_input_s: float = 0.0
    backward_weight_s: float = 0.0
    kept_bytes: float = 0.0
    recomputed_bytes: float = 0.0
    trained_elements: float = 0.0
    frozen_elements: float = 0.0
    operator_bytes: float = 0.0
    messages_s: list[float] = field(default_factory=lambda: [0.0, 0.0])


class RegionOracle:
    """One region of a model; blocks by their first.

    Args:
        calls: of the region.
        entries: what it reads of other items, with the name of what crosses.
        exits: what it makes for others, likewise.
        alike: names of what all blocks read alike.
    """

    def __init__(
        self,
        graph: OpGraph,
        costs: MicrobatchCosts,
        cluster: ClusterSpec,
        *,
        calls: tuple[str, ...],
        is_block: bool,
        entries: Mapping[Ref, str],
        exits: Mapping[Ref, str],
        alike: frozenset[str],
    ) -> None:
        self.graph = graph.at_batch(costs.sizes.batch)
        self.costs = costs
        self.cluster = cluster
        self.tp = costs.space.tp
        self.nodes = [self.graph.by_name[name] for name in calls]
        self.inside = {node.name for node in self.nodes}
        self.is_block = is_block
        self.entries = entries
        self.exits = exits
        self.alike = alike

    # Ways

    def parameters(self) -> list[str]:
        read = dict.fromkeys(ref.node for node in self.nodes for ref in node.operands)
        return [name for name in read if self.graph.by_name[name].kind == "parameter"]

    def ways(self, crossing: Mapping[str, Placement], modes: tuple[str, ...]) -> Iterator[Way]:
        """All assignments with these boundaries."""
        names, stored = [node.name for node in self.nodes], self.parameters()
        own = [name for name in names if not self.is_view(self.graph.by_name[name])]
        own += [ref.node for ref in self.entries]
        for strategies in itertools.product(*(self.costs.space.of(name) for name in names)):
            for storage in itertools.product(*(self.costs.space.of(name) for name in stored)):
                for mode in modes:
                    for again in self.runs(mode, own):
                        yield Way(
                            mode=mode,
                            strategies=dict(zip(names, strategies, strict=True)),
                            storage={
                                name: s.outputs[0] for name, s in zip(stored, storage, strict=True)
                            },
                            crossing=crossing,
                            again=again,
                        )

    def runs(self, mode: str, own: list[str]) -> Iterator[frozenset[str]]:
        if mode == "nothing":
            yield frozenset()
        elif mode == "all":
            yield self.needed() | {ref.node for ref in self.entries}
        else:
            for size in range(len(own) + 1):
                yield from map(frozenset, itertools.combinations(own, size))

    def needed(self) -> frozenset[str]:
        """Calls whose results the backward needs, directly or to run again."""
        found = {n.name for n in self.nodes if any(k.operand is None for k in n.saved)}
        found |= {
            self.base(node.operands[kept.operand]).node
            for node in self.nodes
            for kept in node.saved
            if kept.operand is not None
        }
        for _ in self.nodes:
            read = (r for name in found & self.inside for r in self.graph.by_name[name].operands)
            found = found | {self.base(ref).node for ref in read}
        return frozenset(found & self.inside)

    def is_view(self, node: OpNode) -> bool:
        return all(node.alias_of)

    def base(self, ref: Ref) -> Ref:
        while ref.node in self.inside:
            target = self.graph.by_name[ref.node].alias_of[ref.index]
            if target is None:
                break
            ref = target
        return ref

    def is_cut(self, ref: Ref, placement: Placement) -> bool:
        """Whether a tensor is a part that is cut from what every rank has whole."""
        ref = self.base(ref)
        whole = ref.node not in (*self.inside, *self.parameters()) and ref not in self.entries
        return whole and isinstance(placement, Shard)

    # Amounts

    def amounts(self, way: Way) -> Amounts | None:
        """What a way takes; None when something cannot be converted."""
        found = Amounts()
        self._operators(way, found)
        self._parameters(way, found)
        if not self._conversions(way, found):
            return None
        self._storages(way, found)
        return found

    def runs_again(self, way: Way, node: OpNode) -> bool:
        return self.base(Ref(node.name)).node in way.again

    def _operators(self, way: Way, found: Amounts) -> None:
        space = self.costs.space
        for node in self.nodes:
            if self.is_view(node):
                continue
            choice = space.of(node.name).index(way.strategies[node.name])
            cost = self.costs.operators[space.number[node.name]][choice]
            found.forward_s += cost.forward_s
            found.backward_weight_s += cost.backward_weight_s
            found.backward_input_s += cost.backward_s - cost.backward_weight_s
            if node.name in way.again:
                found.backward_input_s += cost.forward_s
            found.operator_bytes = max(found.operator_bytes, cost.transient_bytes)

    def _parameters(self, way: Way, found: Amounts) -> None:
        for name, placement in way.storage.items():
            meta = self.graph.by_name[name].outputs[0]
            elements = meta.numel * local_fraction(placement, self.tp)
            if meta.requires_grad:
                found.trained_elements += elements
            else:
                found.frozen_elements += elements

    def _source(self, way: Way, ref: Ref) -> tuple[Placement, bool]:
        """Where a tensor is when it is read, and whether it is made again."""
        if ref.node in self.inside:
            again = self.base(ref).node in way.again
            return way.strategies[ref.node].outputs[ref.index], again
        if ref in self.entries:
            return way.crossing[self.entries[ref]], ref.node in way.again
        return way.storage.get(ref.node, Replicate()), False

    def _wanted(self, way: Way) -> Iterator[tuple[str, Ref, Port, OpNode | None, int]]:
        """Every reading: by whom it is shared, the tensor, the port, the reader and operand."""
        for node in self.nodes:
            for k, ref in enumerate(node.operands):
                yield "here", ref, way.strategies[node.name].inputs[k], node, k
        for ref, name in self.exits.items():
            placement = way.crossing[name]
            port = Port(placement, grad_of(placement))
            yield "out" if self.is_block else "here", ref, port, None, -1
        if self.graph.output.node in self.inside:
            yield "here", self.graph.output, Port(Replicate(), Replicate()), None, -1

    def _conversions(self, way: Way, found: Amounts) -> bool:
        readers: dict[tuple[str, Ref, Port], list[tuple[OpNode | None, int]]] = defaultdict(list)
        for place, ref, port, node, k in self._wanted(way):
            readers[place, ref, port].append((node, k))
        for (_, ref, port), uses in readers.items():
            source, again = self._source(way, ref)
            if not is_possible(source, port):
                return False
            ahead_s, back_s, is_sent = self._message_s(ref, source, port)
            nodes = [(node, k) for node, k in uses if node is not None]
            if self.graph.by_name[ref.node].kind == "parameter":
                stays = way.mode != "all" and any(not self.runs_again(way, n) for n, _ in nodes)
                repeated = not stays
                nbytes = self.graph.meta(ref).nbytes * local_fraction(port.placement, self.tp)
                if is_sent and stays:
                    found.kept_bytes += nbytes
                elif is_sent:
                    found.recomputed_bytes += nbytes
            else:
                repeated = again and any(
                    self.runs_again(way, node) or k in {kept.operand for kept in node.saved}
                    for node, k in nodes
                )
            found.forward_s += ahead_s
            found.messages_s[0] += ahead_s
            behind_s = back_s + (ahead_s if repeated else 0.0)
            found.backward_input_s += behind_s
            found.messages_s[1] += behind_s
        return True

    def _message_s(self, ref: Ref, source: Placement, port: Port) -> tuple[float, float, bool]:
        meta = self.graph.meta(ref)
        change = conversion(source, port, differentiable=meta.requires_grad)
        if change is None:
            return 0.0, 0.0, False
        ahead, back = messages(change, meta.nbytes, self.tp)
        return (*(
            sum(collective_s(kind, n, self.tp, self.tp, self.cluster) for kind, n in sent)  # type: ignore[arg-type]
            for sent in (ahead, back)
        ), bool(ahead))  # fmt: skip

    def _behind(self, ref: Ref, placement: Placement) -> tuple[Ref, Placement]:
        """The storage of a view: what it is a view of, placed as a strategy of the view says."""
        while ref.node in self.inside and not self.is_cut(ref, placement):
            node = self.graph.by_name[ref.node]
            target = node.alias_of[ref.index]
            if target is None:
                break
            fitting = [
                s for s in self.costs.space.of(node.name) if s.outputs[ref.index] == placement
            ]
            if not fitting:
                break
            ref, placement = target, fitting[0].inputs[node.operands.index(target)].placement
        return ref, placement

    def _key(self, ref: Ref, placement: Placement, reader: OpNode) -> _Key:
        """A storage; every reader has its own of what is cut from something whole."""
        own = reader.name if self.is_cut(ref, placement) else ""
        return *self._behind(ref, placement), own

    def _storages(self, way: Way, found: Amounts) -> None:
        saved: dict[_Key, list[OpNode]] = defaultdict(list)
        read: dict[_Key, list[OpNode]] = defaultdict(list)
        for node in self.nodes:
            strategy = way.strategies[node.name]
            for kept in node.saved:
                if kept.operand is not None:
                    placement = strategy.inputs[kept.operand].placement
                    saved[self._key(node.operands[kept.operand], placement, node)].append(node)
                elif kept.source is not None:
                    saved[self._key(kept.source, strategy.outputs[0], node)].append(node)
                else:
                    nbytes = kept.nbytes / (self.tp if strategy.splits_work else 1)
                    found.kept_bytes += 0 if node.name in way.again else nbytes
                    found.recomputed_bytes += nbytes if node.name in way.again else 0
            if node.name in way.again and not self.is_view(node):
                for ref, port in zip(node.operands, strategy.inputs, strict=True):
                    read[self._key(ref, port.placement, node)].append(node)
        for key in {**saved, **read}:
            self._storage(way, found, key, saved[key], read[key])
        self._crossing_storages(way, found)

    def _storage(
        self,
        way: Way,
        found: Amounts,
        key: _Key,
        saved: list[OpNode],
        read: list[OpNode],
    ) -> None:
        ref, placement, _ = key
        is_cut = self.is_cut(ref, placement)
        if not (ref.node in self.inside or ref in self.entries or is_cut):
            return
        nbytes = self.graph.meta(ref).nbytes * local_fraction(placement, self.tp)
        nbytes *= self._counted(way, ref, placement)
        cut_again = is_cut and way.mode == "all"
        if cut_again or ref.node in way.again or self.base(ref).node in way.again:
            found.recomputed_bytes += nbytes if saved else 0
        elif read or any(node.name not in way.again for node in saved):
            found.kept_bytes += nbytes

    def _counted(self, way: Way, ref: Ref, placement: Placement) -> float:
        """How much of a copy counts here: what entered counts by itself, and once for all blocks
        that read it alike; copies in other placements are each block's own."""
        if ref not in self.entries:
            return 1.0
        there = way.crossing[self.entries[ref]]
        if self.is_block and way.mode != "nothing" and there == placement:
            return 0.0
        return self._share(ref) if there == placement else 1.0

    def _share(self, ref: Ref) -> float:
        return 1 / len(self.graph.blocks) if self.entries[ref] in self.alike else 1.0

    def _crossing_storages(self, way: Way, found: Amounts) -> None:
        for ref, name in self.entries.items():
            if self.is_block and way.mode != "nothing":
                share = local_fraction(way.crossing[name], self.tp) * self._share(ref)
                found.kept_bytes += self.graph.meta(ref).nbytes * share
