"""Everything that the lowering reads about one program: graph, placements and degrees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from autoplan.codegen.again import Again
from autoplan.codegen.naming import variable
from autoplan.codegen.operators import is_dropout
from autoplan.errors import PlanError
from autoplan.plan import StagePlan
from autoplan.sharding.assignment import Assignment
from autoplan.sharding.batch import BatchLayout
from autoplan.sharding.placement import Placement, Replicate, divides, local_shape
from autoplan.trace.graph import OpGraph, Ref


@dataclass(frozen=True, kw_only=True)
class Choices:
    """A graph at the global batch and everything that is decided about it.

    Attributes:
        assignment: strategies and placements on ``tp``.
        layout: placements on the axes that split the batch.
        dp, num_microbatches, tp: degrees.
        recomputed: paths of blocks that are recomputed in the backward.
        again: what else runs again in the backward, by path of the block.
        evaluates: whether the graph is of the model without its loss, for no backward.
        starts: numbers of the items of the stack with which stages begin, where ``stages`` are
            those of another graph of the model.
        stages: of the pipeline; none without one.
    """

    graph: OpGraph
    assignment: Assignment
    layout: BatchLayout
    dp: int
    num_microbatches: int
    tp: int
    recomputed: frozenset[str]
    stages: tuple[StagePlan, ...] = ()
    again: Mapping[str, Again] = field(default_factory=dict)
    evaluates: bool = False
    starts: tuple[int, ...] | None = None

    @property
    def is_alone(self) -> bool:
        """Whether one rank runs everything in one piece."""
        return self.splits == self.tp == 1 and not self.stages

    @property
    def splits(self) -> int:
        """Pieces of the batch."""
        return self.dp * self.num_microbatches

    @property
    def hoisted(self) -> tuple[Ref, ...]:
        """Values computed ahead of the forward, summed over the batch there; none on one piece."""
        return self.layout.hoisted if self.splits > 1 else ()

    def storage(self, node: str) -> Placement:
        """Placement on ``tp`` of a parameter or buffer; buffers are whole on every rank."""
        return self.assignment.storage.get(node, Replicate())

    @cached_property
    def draw_numbers(self) -> dict[str, int]:
        """The number of every dropout, from 0 in the order of one device, by name of its node."""
        unread = Counter(self.graph.unread_draws)
        dropouts = [node.name for node in self.graph.of_kind("call") if is_dropout(node)]
        drawn = accumulate(1 + unread[name] for name in dropouts)
        return {name: count - 1 for name, count in zip(dropouts, drawn, strict=True)}

    @cached_property
    def draws_before(self) -> dict[str, int]:
        """The number of the first dropout of every block that has one, by path."""
        found: dict[str, int] = {}
        for name, number in self.draw_numbers.items():
            block = self.graph.block_of.get(name)
            if block is not None:
                found.setdefault(block.path, number)
        return found

    @cached_property
    def _calls_of_module(self) -> Counter[str]:
        return Counter(node.module for node in self.graph.of_kind("call"))

    def name_of(self, name: str, inside: str = "") -> str:
        """A readable name for the result of a node in the code of a block kind, or of the root."""
        node = self.graph.by_name[name]
        if node.kind != "call":
            return "_".join(name.split(".")[-2:])
        alone = self._calls_of_module[node.module] == 1
        return variable(node.module, node.target.split(".")[1], inside=inside, alone=alone)

    def shape(self, ref: Ref, placement: Placement) -> tuple[int, ...]:
        """Shape of the tensor on one rank, for one microbatch, placed so on ``tp``.

        Raises:
            PlanError: when a split is uneven.
        """
        shape = self.graph.meta(ref).shape
        for at, ranks, axes in (
            (self.layout.placements[ref], self.splits, "dp and microbatches"),
            (placement, self.tp, "tp"),
        ):
            if not divides(at, shape, ranks):
                raise PlanError(
                    f"{ref.node} of shape {shape} cannot be {at!r} over {ranks} ({axes}); "
                    "change the degree or the placement"
                )
            shape = local_shape(shape, at, ranks)
        return shape
