"""How a block runs under a column: its operators in order, and what is sent between them.

The messages are those that are priced (``conversion_terms``): a tensor that several readers want in
one placement is sent once; here each of these reads names the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from autoplan.plan_details import MOST_FLOW_OPERATORS, BlockFlow, FlowOperator, TensorRead
from autoplan.search.operator_costs import MicrobatchCosts
from autoplan.search.regions.ways import Mode, Ways, crossing_name
from autoplan.sharding.assignment import relative_name
from autoplan.sharding.placement import Placement, Replicate, grad_of
from autoplan.sharding.redistribute import Message
from autoplan.sharding.strategies import Port, Strategy
from autoplan.trace.graph import OpNode, Ref, TensorMeta


def flow_of(
    ways: Ways, costs: MicrobatchCosts, choices: Sequence[int], block: str
) -> BlockFlow | None:
    """The flow of a block; None for one of too many operators to draw.

    Args:
        choices: of all decisions of the region.
        block: the path under which the flow is known.
    """
    if len(ways.region.calls) > MOST_FLOW_OPERATORS:
        return None
    return _Flow(ways, costs, choices).whole(block)


@dataclass(frozen=True, slots=True)
class _Flow:
    """Collects operators.

    Attributes:
        number: of the operator that stands for each tensor; ``-1 - k`` for what enters.
    """

    ways: Ways
    costs: MicrobatchCosts
    choices: Sequence[int]
    operators: list[FlowOperator] = field(default_factory=list)
    number: dict[Ref, int] = field(default_factory=dict)

    def whole(self, block: str) -> BlockFlow:
        region = self.ways.region
        for index, door in enumerate(region.folded.doors[region.key]):
            self.number[Ref(door.name)] = -1 - index
        for node in region.calls:
            self._call(node)
        return BlockFlow(
            block=block,
            operators=tuple(self.operators),
            outputs=tuple(self._leaves(ref, boundary) for ref, boundary in region.exits.items()),
        )

    def _call(self, node: OpNode) -> None:
        region, strategy = self.ways.region, self._strategy(node.name)
        reads = [
            self._read(ref, port)
            for ref, port in zip(region.reads[node.name], strategy.inputs, strict=True)
        ]
        if region.is_view(node) and not any(read.forward or read.backward for read in reads):
            for index, target in enumerate(node.alias_of):
                viewed = target and region.folded.operand(node, target)
                if viewed in self.number:
                    self.number[Ref(node.name, index)] = self.number[viewed]
            return
        for index in range(len(node.outputs)):
            self.number[Ref(node.name, index)] = len(self.operators)
        self.operators.append(
            FlowOperator(
                name=relative_name(region.key, node.name),
                placement=repr(strategy.outputs[0]),
                reads=tuple(filter(self._is_shown, reads)),
                flops=node.flops,
                recomputed=self.ways.mode is Mode.ALL
                or self.ways.runs_again(node).at(self.choices),
            )
        )

    def _is_shown(self, read: TensorRead) -> bool:
        return read.source is not None or bool(read.forward or read.backward)

    def _strategy(self, name: str) -> Strategy:
        return self.ways.strategies(name)[self.choices[self.ways.number[name]]]

    def _left(self, ref: Ref) -> Placement:
        """The placement in which a tensor is, as it was made or entered."""
        region = self.ways.region
        if ref in region.entries:
            return self._crossing(region.entries[ref])
        if ref.node in region.by_name:
            return self._strategy(ref.node).outputs[ref.index]
        if ref.node in region.parameters:
            return self.ways.placements(ref.node)[self.choices[self.ways.number[ref.node]]]
        return Replicate()

    def _crossing(self, boundary: int) -> Placement:
        one = self.ways.boundaries[boundary]
        decision = self.ways.number[crossing_name(one)]
        return one.placements[self.ways.decisions[decision].options[self.choices[decision]]]

    def _leaves(self, ref: Ref, boundary: int) -> TensorRead:
        placement = self._crossing(boundary)
        return self._read(ref, Port(placement, grad_of(placement)))

    def _read(self, ref: Ref, port: Port) -> TensorRead:
        meta = self._meta(ref)
        if meta is None:
            return TensorRead(source=self.number.get(ref))
        cost = self.costs.converter.cost(meta.nbytes, meta.requires_grad, self._left(ref), port)
        return TensorRead(
            source=self.number.get(ref),
            forward=_kind(cost.forward),
            backward=_kind(cost.backward),
            nbytes=meta.nbytes if cost.forward or cost.backward else 0,
        )

    def _meta(self, ref: Ref) -> TensorMeta | None:
        """The tensor, as its conversions are priced; None for what is whole on every rank."""
        region = self.ways.region
        if ref in region.entries:
            return self.ways.boundaries[region.entries[ref]].meta
        if ref.node in region.by_name or ref.node in region.parameters:
            return self.costs.sizes.meta(ref)
        return None


def _kind(sent: tuple[Message, ...]) -> str:
    return " and ".join(kind for kind, _ in sent)
