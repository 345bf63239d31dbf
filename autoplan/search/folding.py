"""One ``Problem`` for a candidate on the folded graph.

Costs of one microbatch become costs of a step: times the number of microbatches, times the blocks
that share the choice. Of L blocks of a kind, n are recomputed: they keep their inputs alone, run
their forward twice, and one of them at a time holds all that it would have kept. All of this is
linear in the choices for a given n.

More recomputed blocks take more time and leave less to keep. A problem for a *range* of n takes
each cost from the end of the range where it is lower, so that no problem in the range costs less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autoplan.search.candidate_costs import CandidateCosts, Recomputed, kept_copies
from autoplan.search.conversion_costs import ConversionCost
from autoplan.search.folded_graph import Door
from autoplan.search.problem import Choice, Node, Problem, Reader, Storage, Tensor, pages
from autoplan.search.space import Link
from autoplan.search.storages import KeptStorage
from autoplan.search.weight_terms import WeightTerms
from autoplan.sharding.placement import local_fraction


def build_problem(
    costs: CandidateCosts, fewest: Recomputed, most: Recomputed | None = None
) -> Problem:
    """The problem of a candidate when so many blocks of each kind are recomputed.

    Args:
        fewest: blocks recomputed, by kind.
        most: the upper end of a range, for a problem that bounds all in it from below.
    """
    most = fewest if most is None else most
    return _Builder(costs, fewest, most, WeightTerms(costs, most)).problem()


def operators_alone(costs: CandidateCosts) -> Problem:
    """Operators and conversions when nothing is recomputed: no parameters, messages or memory."""
    return _Builder(costs, {}, {}, WeightTerms(costs, {})).operators()


@dataclass(frozen=True, slots=True)
class _Builder:
    costs: CandidateCosts
    fewest: Recomputed
    most: Recomputed
    weights: WeightTerms

    def problem(self) -> Problem:
        space = self.costs.microbatch.space
        nodes = tuple(
            Node(name=name, choices=self._choices(number))
            for number, name in enumerate(space.names)
        )
        links = zip(space.links, self.costs.microbatch.conversions, strict=True)
        return Problem(
            nodes=nodes,
            tensors=tuple(
                self._tensor(link, table, self._copies(link, table)) for link, table in links
            ),
            storages=(
                *(self._storage(storage) for storage in self.costs.storages),
                *self._entering(),
            ),
            peaks=self.weights.peaks(),
            overlaps=self.weights.overlaps(),
            fixed_s=self.weights.root_latency_s(),
            fixed_pages=self.costs.fixed_pages,
            limit_pages=self.costs.limit_pages,
        )

    def operators(self) -> Problem:
        space, weights = self.costs.microbatch.space, self.costs.weights.elements
        links = zip(space.links, self.costs.microbatch.conversions, strict=True)
        return Problem(
            nodes=tuple(
                Node(
                    name=name,
                    choices=(Choice(label=name),) * len(space.strategies[number])
                    if number in weights
                    else self._choices(number),
                )
                for number, name in enumerate(space.names)
            ),
            tensors=tuple(self._tensor(link, table, ()) for link, table in links),
        )

    @property
    def _doors(self) -> Iterator[Door]:
        return (door for doors in self.costs.folded.doors.values() for door in doors)

    @property
    def _distinct(self) -> dict[str, int]:
        return {door.name: door.distinct for door in self._doors}

    def _runs(self, region: str) -> tuple[int, int]:
        """Forward and backward runs of a region in a step, over all its blocks."""
        copies = self.costs.folded.copies(region)
        count = self.costs.candidate.num_microbatches
        return count * (copies + self.fewest.get(region, 0)), count * copies

    def _choices(self, number: int) -> tuple[Choice, ...]:
        space = self.costs.microbatch.space
        labels = [strategy.label for strategy in space.strategies[number]]
        if number in self.costs.weights.elements:
            return self.weights.choices(number, labels)
        forward, backward = self._runs(self.costs.region(number))
        return tuple(
            Choice(
                label=label,
                time_s=forward * cost.forward_s + backward * cost.backward_s,
                transient_pages=pages(cost.transient_bytes),
            )
            for label, cost in zip(labels, self.costs.microbatch.operators[number], strict=True)
        )

    def _entering(self) -> Iterator[Storage]:
        """What recomputed blocks keep: all that enters them."""
        space, sizes = self.costs.microbatch.space, self.costs.microbatch.sizes
        for door in self._doors:
            copies = min(self.fewest.get(door.kind, 0), door.distinct)
            for choice, strategy in enumerate(space.of(door.name) if copies else ()):
                share = local_fraction(strategy.outputs[0], space.tp)
                yield Storage(
                    name=door.name,
                    kept_pages=pages(copies * sizes.doors[door.name].nbytes * share),
                    holders=((space.number[door.name], frozenset((choice,))),),
                )

    def _tensor(
        self,
        link: Link,
        table: tuple[tuple[ConversionCost, ...], ...],
        copy_pages: tuple[tuple[int, ...], ...],
    ) -> Tensor:
        region, copies = link.tensor.region, link.tensor.copies
        count = self.costs.candidate.num_microbatches
        forward = count * (copies + self.fewest.get(region, 0))
        return Tensor(
            name=link.tensor.ref.node,
            producer=link.producer,
            classes=link.classes,
            readers=tuple(Reader(node=node, ports=ports) for node, ports in link.readers),
            conversion_s=tuple(
                tuple(forward * c.forward_s + count * copies * c.backward_s for c in row)
                for row in table
            ),
            copy_pages=copy_pages,
        )

    def _copies(
        self, link: Link, table: tuple[tuple[ConversionCost, ...], ...]
    ) -> tuple[tuple[int, ...], ...]:
        """Pages of converted copies beyond those that ``storages`` have, if they stay.

        Weights converted for their readers stay until the backward. Of an activation that enters
        all blocks alike there is one storage, but each block makes its own converted copy.
        """
        region = link.tensor.region
        kept = link.tensor.copies - self.most.get(region, 0)
        kept += bool(self.fewest.get(region, 0))
        distinct = self._distinct.get(link.tensor.ref.node)
        if link.producer in self.costs.weights.elements:
            copies = kept
        elif distinct is not None and distinct < kept:
            copies = kept - distinct
        else:
            return ()
        space, sizes = self.costs.microbatch.space, self.costs.microbatch.sizes
        nbytes = copies * sizes.meta(link.tensor.ref).nbytes
        return tuple(
            tuple(
                pages(nbytes * local_fraction(port.placement, space.tp)) if cost.forward else 0
                for port, cost in zip(link.ports, row, strict=True)
            )
            for row in table
        )

    def _storage(self, storage: KeptStorage) -> Storage:
        copies = kept_copies(self.costs.folded, storage, self.most)
        return Storage(
            name=storage.source.node,
            kept_pages=pages(copies * storage.nbytes),
            transient_pages=pages(storage.nbytes) if self.fewest.get(storage.region) else 0,
            group=storage.region,
            holders=tuple((node, frozenset(taken)) for node, taken in storage.holders.items()),
        )
