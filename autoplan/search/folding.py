"""One ``Problem`` for a candidate on the folded graph.

Costs of one microbatch become costs of a step: times the number of microbatches, times the blocks
that share the choice. Of L blocks of a kind, n are recomputed: they keep their inputs alone, run
their forward twice, and one of them at a time holds all that it would have kept. All of this is
linear in the choices for a given n.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoplan.search.candidates import Candidate
from autoplan.search.folded_graph import ROOT, FoldedGraph
from autoplan.search.operator_costs import ConversionCost, MicrobatchCosts
from autoplan.search.problem import (
    Choice,
    Node,
    Overlap,
    Peak,
    Problem,
    Reader,
    Storage,
    Tensor,
    pages,
)
from autoplan.search.space import Link
from autoplan.search.storages import KeptStorage
from autoplan.search.weight_costs import UnitMessages, WeightCosts
from autoplan.sharding.placement import local_fraction
from cost_models.memory import STORED_BYTES

Recomputed = Mapping[str, int]

IN_FLIGHT_UNITS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateCosts:
    """Everything that is priced for a candidate, whatever is recomputed.

    Attributes:
        fixed_pages: workspace, buffers and the step's inputs.
        limit_pages: what the device has for all of it.
        overlap_efficiency: fraction of hidden communication time that is really saved.
    """

    candidate: Candidate
    microbatch: MicrobatchCosts
    storages: tuple[KeptStorage, ...]
    weights: WeightCosts
    fixed_pages: int
    limit_pages: int
    overlap_efficiency: float


def build_problem(costs: CandidateCosts, recomputed: Recomputed) -> Problem:
    """The problem of a candidate when so many blocks of each kind are recomputed."""
    return _Builder(costs, recomputed).problem()


def kept_copies(folded: FoldedGraph, storage: KeptStorage, recomputed: Recomputed) -> int:
    """How many copies of a storage the blocks that are not recomputed keep."""
    kept = folded.copies(storage.region) - recomputed.get(storage.region, 0)
    for door in folded.doors.get(storage.region, ()):
        if door.name == storage.source.node:
            return min(kept, door.distinct)
    return kept


@dataclass(frozen=True, slots=True)
class _Builder:
    costs: CandidateCosts
    recomputed: Recomputed

    @property
    def folded(self) -> FoldedGraph:
        return self.costs.microbatch.space.folded

    def problem(self) -> Problem:
        space = self.costs.microbatch.space
        nodes = tuple(
            Node(name=name, choices=self._choices(number))
            for number, name in enumerate(space.names)
        )
        links = zip(space.links, self.costs.microbatch.conversions, strict=True)
        return Problem(
            nodes=nodes,
            tensors=tuple(self._tensor(link, table) for link, table in links),
            storages=tuple(self._storage(storage) for storage in self.costs.storages),
            peaks=self._peaks(),
            overlaps=self._overlaps(),
            fixed_s=self._root_latency_s(),
            fixed_pages=self.costs.fixed_pages,
            limit_pages=self.costs.limit_pages,
        )

    def _runs(self, region: str) -> tuple[int, int]:
        """Forward and backward runs of a region in a step, over all its blocks."""
        copies = self.folded.copies(region)
        count = self.costs.candidate.num_microbatches
        return count * (copies + self.recomputed.get(region, 0)), count * copies

    def _choices(self, number: int) -> tuple[Choice, ...]:
        space, weights = self.costs.microbatch.space, self.costs.weights
        name = space.names[number]
        labels = [strategy.label for strategy in space.strategies[number]]
        if number in weights.elements:
            return tuple(self._parameter(number, c, label) for c, label in enumerate(labels))
        if name in self.costs.microbatch.sizes.doors:
            return tuple(self._door(number, c, label) for c, label in enumerate(labels))
        forward, backward = self._runs(self.folded.region.get(name, ROOT))
        return tuple(
            Choice(
                label=label,
                time_s=forward * cost.forward_s + backward * cost.backward_s,
                transient_pages=pages(cost.transient_bytes),
            )
            for label, cost in zip(labels, self.costs.microbatch.operators[number], strict=True)
        )

    def _parameter(self, number: int, choice: int, label: str) -> Choice:
        weights = self.costs.weights
        region = self.folded.region[self.costs.microbatch.space.names[number]]
        copies = self.folded.copies(region)
        elements = weights.elements[number][choice]
        each = weights.per_element[weights.trainable[number]]
        held = each.parameters + each.master_weights + each.gradients
        held += each.optimizer_state + each.gathered_parameters
        nbytes = copies * elements * held
        if region == ROOT:
            nbytes += elements * each.gathered_in_flight
        return Choice(
            label=label,
            time_s=self._weight_s(number, choice, region),
            memory_pages=pages(nbytes),
            step_pages=pages(copies * elements * each.optimizer_step),
        )

    def _weight_s(self, number: int, choice: int, region: str) -> float:
        """Exposed seconds of a parameter: the optimizer, and messages beside no compute."""
        weights = self.costs.weights
        copies = self.folded.copies(region)
        zero = (0.0,) * (choice + 1)
        seconds = copies * weights.optimizer_s.get(number, zero)[choice]
        seconds += weights.all_reduce_s.get(number, zero)[choice]
        if region == ROOT:
            for messages, count in self._unit_messages(ROOT):
                seconds += count * messages.by_parameter_s.get(number, zero)[choice]
        return seconds

    def _unit_messages(self, region: str) -> list[tuple[UnitMessages, int]]:
        """A region's messages of one unit, with how often a step sends them."""
        weights, count = self.costs.weights, self.costs.candidate.num_microbatches
        stage = weights.stage
        found = []
        if region in weights.gathers:
            times = stage.gathers_per_step + count * stage.gathers_per_microbatch
            found.append((weights.gathers[region], times))
        if region in weights.reductions:
            times = stage.reductions_per_step + count * stage.reductions_per_microbatch
            found.append((weights.reductions[region], times))
        return found

    def _root_latency_s(self) -> float:
        return sum(count * messages.fixed_s for messages, count in self._unit_messages(ROOT))

    def _door(self, number: int, choice: int, label: str) -> Choice:
        """Recomputed blocks keep what enters them."""
        space, sizes = self.costs.microbatch.space, self.costs.microbatch.sizes
        name = space.names[number]
        door = next(d for doors in self.folded.doors.values() for d in doors if d.name == name)
        copies = min(self.recomputed.get(door.kind, 0), door.distinct)
        placement = space.strategies[number][choice].outputs[0]
        nbytes = copies * sizes.doors[name].nbytes * local_fraction(placement, space.tp)
        return Choice(label=label, memory_pages=pages(nbytes))

    def _tensor(self, link: Link, table: tuple[tuple[ConversionCost, ...], ...]) -> Tensor:
        region, copies = link.tensor.region, link.tensor.copies
        count = self.costs.candidate.num_microbatches
        forward = count * (copies + self.recomputed.get(region, 0))
        return Tensor(
            name=link.tensor.ref.node,
            producer=link.producer,
            classes=link.classes,
            readers=tuple(Reader(node=node, ports=ports) for node, ports in link.readers),
            conversion_s=tuple(
                tuple(forward * c.forward_s + count * copies * c.backward_s for c in row)
                for row in table
            ),
            copy_pages=self._copies(link, table),
        )

    def _copies(
        self, link: Link, table: tuple[tuple[ConversionCost, ...], ...]
    ) -> tuple[tuple[int, ...], ...]:
        """Pages of weights that are converted for their readers and stay until the backward."""
        if link.producer not in self.costs.weights.elements:
            return ()
        space, sizes = self.costs.microbatch.space, self.costs.microbatch.sizes
        nbytes = sizes.meta(link.tensor.ref).nbytes
        region = link.tensor.region
        kept = link.tensor.copies - self.recomputed.get(region, 0)
        kept += bool(self.recomputed.get(region, 0))
        return tuple(
            tuple(
                pages(kept * nbytes * local_fraction(port.placement, space.tp))
                if cost.forward
                else 0
                for port, cost in zip(link.ports, row, strict=True)
            )
            for row in table
        )

    def _storage(self, storage: KeptStorage) -> Storage:
        copies = kept_copies(self.folded, storage, self.recomputed)
        return Storage(
            name=storage.source.node,
            kept_pages=pages(copies * storage.nbytes),
            transient_pages=pages(storage.nbytes) if self.recomputed.get(storage.region) else 0,
            group=storage.region,
            holders=tuple((node, frozenset(taken)) for node, taken in storage.holders.items()),
        )

    def _peaks(self) -> tuple[Peak, ...]:
        """Weights gathered for the blocks in use, and the largest gradient being reduced."""
        weights = self.costs.weights
        units: dict[str, list[int]] = {}
        for number in weights.elements:
            region = self.folded.region[self.costs.microbatch.space.names[number]]
            units.setdefault(region, []).append(number)
        gathered = tuple(
            self._in_flight(members, min(IN_FLIGHT_UNITS, self.folded.copies(region)))
            for region, members in units.items()
            if region != ROOT
        )
        reduced = tuple(self._reduced(members) for members in units.values())
        if self.costs.candidate.dp == 1:
            reduced = ()
        return (Peak(name="gathered", groups=gathered), Peak(name="reduced", groups=reduced))

    def _in_flight(
        self, members: list[int], copies: int
    ) -> tuple[tuple[int, tuple[int, ...]], ...]:
        weights = self.costs.weights
        return tuple(
            (
                number,
                tuple(
                    pages(
                        copies
                        * n
                        * weights.per_element[weights.trainable[number]].gathered_in_flight
                    )
                    for n in weights.elements[number]
                ),
            )
            for number in members
        )

    def _reduced(self, members: list[int]) -> tuple[tuple[int, tuple[int, ...]], ...]:
        weights = self.costs.weights
        return tuple(
            (number, tuple(pages(n * STORED_BYTES) for n in weights.elements[number]))
            for number in members
            if weights.trainable[number]
        )

    def _overlaps(self) -> tuple[Overlap, ...]:
        """Messages of blocks: weights under the forward, weights and gradients under the backward.

        A message sent once a step has the window of one microbatch.
        """
        stage, count = self.costs.weights.stage, self.costs.candidate.num_microbatches
        again = stage.gathers_per_microbatch // 2 * count
        gathers = stage.gathers_per_step + again
        reductions = stage.reductions_per_step + count * stage.reductions_per_microbatch
        forward = [(self.costs.weights.gathers, gathers)]
        backward = [
            (self.costs.weights.gathers, again),
            (self.costs.weights.reductions, reductions),
        ]
        found = (
            self._overlap("forward", forward, 1 if stage.gathers_per_step else count),
            self._overlap("backward", backward, 1 if stage.reductions_per_step else count),
        )
        return tuple(overlap for overlap in found if overlap is not None)

    def _overlap(
        self, name: str, sent: list[tuple[dict[str, UnitMessages], int]], runs: int
    ) -> Overlap | None:
        fixed_s = 0.0
        by_parameter: dict[int, list[float]] = {}
        for by_region, times in sent:
            for region, messages in by_region.items():
                if region == ROOT or not times:
                    continue
                units = times * self.folded.copies(region)
                fixed_s += units * messages.fixed_s
                for number, row in messages.by_parameter_s.items():
                    total = by_parameter.setdefault(number, [0.0] * len(row))
                    by_parameter[number] = [t + units * s for t, s in zip(total, row, strict=True)]
        if not by_parameter:
            return None
        return Overlap(
            name=name,
            messages_s=tuple((number, tuple(row)) for number, row in by_parameter.items()),
            window_s=self._window(name, runs),
            floor=1 - self.costs.overlap_efficiency,
            fixed_messages_s=fixed_s,
        )

    def _window(self, name: str, runs: int) -> tuple[tuple[int, tuple[float, ...]], ...]:
        """Compute of ``runs`` microbatches that can hide messages, all regions together."""
        efficiency = self.costs.overlap_efficiency
        found = []
        for number, costs in enumerate(self.costs.microbatch.operators):
            region = self.folded.region.get(self.costs.microbatch.space.names[number], ROOT)
            copies = self.folded.copies(region)
            again = self.recomputed.get(region, 0)
            if name == "forward":
                row = tuple(copies * cost.forward_s for cost in costs)
            else:
                row = tuple(copies * cost.backward_s + again * cost.forward_s for cost in costs)
            if any(row):
                found.append((number, tuple(efficiency * runs * s for s in row)))
        return tuple(found)
