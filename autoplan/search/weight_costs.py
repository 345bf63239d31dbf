"""What parameters cost under a ZeRO stage: bytes, data-parallel messages, the optimizer's step.

Messages are sent per *unit*, a block or the root. A unit's gathers carry its weights in the compute
precision, its reductions fp32 gradients. Those of blocks run beside compute; those of the root do
not: its weights are needed first, and its gradients are complete last. Stage 0 sums the gradients
after the last backward, parameters together in buckets of ``BUCKET_BYTES``, beside nothing.

Seconds of a unit are linear in its bytes, through the values at the fewest and at the most bytes
that the choices allow: exact, but for an all-reduce that changes its algorithm on the way.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.capabilities import BUCKET_BYTES, ZERO_STAGES, ZeroStage
from autoplan.search.candidates import Candidate
from autoplan.search.operator_costs import dp_ranks_per_node
from autoplan.search.space import Space
from autoplan.sharding.placement import local_fraction
from cost_models.collectives import CollectiveKind, collective_s
from cost_models.memory import COMPUTE_BYTES, STORED_BYTES, WeightBytes, weight_bytes
from cost_models.optimizers import optimizer
from cost_models.peaks import streaming_bytes_per_s
from hardware_profiles.spec import ClusterSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """What of a job bears on the price of a weight."""

    precision: str
    optimizer: str
    gpus_per_node: int


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitMessages:
    """Seconds of one unit's messages: ``fixed_s`` and, by parameter, seconds for each choice."""

    fixed_s: float
    by_parameter_s: dict[int, tuple[float, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightCosts:
    """Prices of all parameters of a space for one mesh and ZeRO stage.

    Attributes:
        stage: the stage that is in effect.
        elements: by parameter (decision number), the elements on one rank for each choice, before
            any split over dp.
        trainable: by parameter, whether it has a gradient.
        per_element: bytes of one element, trainable or not.
        optimizer_s: by parameter, seconds of the optimizer's step for each choice.
        gathers, reductions: messages of one unit of each region, once.
        all_reduce_s: by parameter, seconds of the sum of its gradient under stage 0.
    """

    stage: ZeroStage
    elements: dict[int, tuple[float, ...]]
    trainable: dict[int, bool]
    per_element: dict[bool, WeightBytes]
    optimizer_s: dict[int, tuple[float, ...]]
    gathers: dict[str, UnitMessages]
    reductions: dict[str, UnitMessages]
    all_reduce_s: dict[int, tuple[float, ...]]


def weight_costs(
    space: Space, candidate: Candidate, training: Training, cluster: ClusterSpec
) -> WeightCosts:
    """Prices every storage placement of every folded parameter."""
    stage = ZERO_STAGES[candidate.zero if candidate.dp > 1 else 0]
    per_element = {
        trainable: weight_bytes(
            precision=training.precision,
            optimizer=training.optimizer,
            dp=candidate.dp,
            stage=stage,
            trainable=trainable,
        )
        for trainable in (True, False)
    }
    parameters = {
        space.number[node.name]: node for node in space.folded.nodes if node.kind == "parameter"
    }
    elements = {
        number: tuple(
            node.outputs[0].numel * local_fraction(strategy.outputs[0], space.tp)
            for strategy in space.strategies[number]
        )
        for number, node in parameters.items()
    }
    trainable = {number: node.outputs[0].requires_grad for number, node in parameters.items()}
    sender = _Sender(space, candidate, training, cluster, elements)
    gathered = COMPUTE_BYTES[training.precision]
    learning = tuple(number for number, learns in trainable.items() if learns)
    sharded = stage.shards_states
    traffic = optimizer(training.optimizer).traffic_bytes / (candidate.dp if sharded else 1)
    return WeightCosts(
        stage=stage,
        elements=elements,
        trainable=trainable,
        per_element=per_element,
        optimizer_s={
            number: tuple(n * traffic / streaming_bytes_per_s(cluster.device) for n in row)
            for number, row in elements.items()
            if trainable[number]
        },
        gathers=sender.units("all_gather", gathered, tuple(elements)) if sharded else {},
        reductions=sender.units("reduce_scatter", STORED_BYTES, learning) if sharded else {},
        all_reduce_s={} if sharded else {number: sender.sum_s(number) for number in learning},
    )


@dataclass(frozen=True, slots=True)
class _Sender:
    """Prices data-parallel messages."""

    space: Space
    candidate: Candidate
    training: Training
    cluster: ClusterSpec
    elements: dict[int, tuple[float, ...]]

    def seconds(self, kind: CollectiveKind, nbytes: float) -> float:
        return dp_collective_s(kind, nbytes, self.candidate, self.training, self.cluster)

    def units(
        self, kind: CollectiveKind, element_bytes: int, parameters: tuple[int, ...]
    ) -> dict[str, UnitMessages]:
        """One unit's message of a kind, for every region that has such parameters."""
        found: dict[str, list[int]] = {}
        for number in parameters:
            region = self.space.folded.region[self.space.names[number]]
            found.setdefault(region, []).append(number)
        return {
            region: self._unit(kind, element_bytes, members) for region, members in found.items()
        }

    def _unit(self, kind: CollectiveKind, element_bytes: int, members: list[int]) -> UnitMessages:
        fewest = element_bytes * sum(min(self.elements[number]) for number in members)
        most = element_bytes * sum(max(self.elements[number]) for number in members)
        low_s, high_s = self.seconds(kind, fewest), self.seconds(kind, most)
        if most == fewest:
            fewest, low_s = 0.0, self.seconds(kind, 0.0)
        rate = (high_s - low_s) / (most - fewest) if most else 0.0
        return UnitMessages(
            fixed_s=high_s - rate * most,
            by_parameter_s={
                number: tuple(rate * element_bytes * n for n in self.elements[number])
                for number in members
            },
        )

    def sum_s(self, number: int) -> tuple[float, ...]:
        """Seconds to sum one parameter's gradients over dp, alone or as its part of a bucket."""
        copies = self.space.folded.copies(self.space.folded.region[self.space.names[number]])
        return tuple(copies * self._sum_s(n * STORED_BYTES) for n in self.elements[number])

    def _sum_s(self, nbytes: float) -> float:
        if nbytes >= BUCKET_BYTES:
            return self.seconds("all_reduce", nbytes)
        return nbytes / BUCKET_BYTES * self.seconds("all_reduce", BUCKET_BYTES)


def dp_collective_s(
    kind: CollectiveKind,
    nbytes: float,
    candidate: Candidate,
    training: Training,
    cluster: ClusterSpec,
) -> float:
    """Seconds of one collective of a candidate over its ``dp`` axis."""
    per_node = dp_ranks_per_node(candidate.dp, candidate.tp, training.gpus_per_node)
    return collective_s(kind, nbytes, candidate.dp, per_node, cluster)
